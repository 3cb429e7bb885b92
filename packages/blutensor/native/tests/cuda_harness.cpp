#include "tests/cuda_harness.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <limits>
#include <sstream>

#include "ops/cuda/launch.h"

namespace blutensor::test {

namespace {

constexpr size_t kArena = size_t{3} << 30, kGuard = 256;
constexpr int kMostMessages = 60;

const OpRef contiguous{"contiguous"}, astype{"astype"}, square{"square"};

void cuda_check(cudaError_t error) { cuda::check(error, "harness"); }

Tensor cast(const Tensor& t, DType dtype) { return astype({t}, {Attr::of_dtype(dtype)}); }

double unit_of(DType dtype) {
  return dtype == DType::float32    ? 0x1p-24
         : dtype == DType::bfloat16 ? 0x1p-8
         : dtype == DType::float16  ? 0x1p-11
                                    : 0x1p-46;
}

// Bits, or both NaN.
bool same_element(const char* a, const char* b, DType dtype, double va, double vb) {
  return std::memcmp(a, b, dtype_size(dtype)) == 0 || (is_floating(dtype) && std::isnan(va) && std::isnan(vb));
}

}  // namespace

std::string case_text(const std::string& op, const Tensors& inputs, const Attrs& attrs) {
  std::ostringstream out;
  out << op << '(';
  for (const Tensor& t : inputs) {
    if (t.defined())
      out << dtype_name(t.dtype()) << t.shape() << " strides " << t.strides() << " +" << t.offset() << "; ";
    else
      out << "none; ";
  }
  for (size_t k = 0; k < attrs.size(); ++k) out << to_text(attrs[k]) << ", ";
  out << ')';
  return std::move(out).str();
}

Harness::Harness() { cuda_check(cudaMalloc(reinterpret_cast<void**>(&arena_), kArena)); }
Harness::~Harness() { static_cast<void>(cudaFree(arena_)); }

void Harness::fail(const std::string& what) {
  if (++failures_ <= kMostMessages) std::printf("FAIL %s\n", what.c_str());
}

char* Harness::take(size_t bytes) {
  char* p = arena_ + used_;
  used_ += (bytes + kGuard + 255) / 256 * 256;
  require(used_ <= kArena, "the harness's arena is full");
  return p;
}

Tensor Harness::random(const Shape& shape, DType dtype, Layout layout, bool special, double scale) {
  // The memory's shape, and the view of it.
  Shape memory = shape;
  const int rank = shape.size();
  if (layout == Layout::offset) memory = {num_elements(shape) + 1};
  if (layout == Layout::transposed && rank > 1) std::swap(memory[rank - 1], memory[rank - 2]);
  if (layout == Layout::stepped && rank > 0) memory[rank - 1] *= 2;
  if (layout == Layout::broadcast && rank > 0) memory[0] = std::min<int64_t>(memory[0], 1);
  if (layout == Layout::scalar) memory = Dims::filled(rank, num_elements(shape) == 0 ? 0 : 1);
  Tensor made = Tensor::empty(memory, dtype, Device{}, "test");
  const int64_t n = made.numel();
  std::normal_distribution<double> normal(0, scale);
  constexpr double inf = std::numeric_limits<double>::infinity();
  constexpr double specials[] = {0.0,    -0.0,   inf,  -inf,  std::numeric_limits<double>::quiet_NaN(),
                                 1e-40,  -1e-40, 3e38, -3e38, 88.8,
                                 -104.1, 1.0,    -1.0, 0.5,   2.0};
  if (is_floating(dtype)) {
    Tensor values = Tensor::empty(memory, DType::float64, Device{}, "test");
    auto* p = static_cast<double*>(values.data());
    for (int64_t i = 0; i < n; ++i)
      p[i] = special && generator_() % 4 == 0 ? specials[generator_() % std::size(specials)] : normal(generator_);
    made = cast(values, dtype);
  } else {
    auto* p = static_cast<char*>(made.data());
    for (size_t i = 0; i < made.nbytes(); ++i)
      p[i] = static_cast<char>(dtype == DType::boolean ? generator_() & 1 : generator_());
  }
  Strides strides = contiguous_strides(memory);
  int64_t offset = 0;
  if (layout == Layout::offset) {
    strides = contiguous_strides(shape);
    offset = 1;
  }
  if (layout == Layout::transposed && rank > 1) std::swap(strides[rank - 1], strides[rank - 2]);
  if (layout == Layout::stepped && rank > 0) strides[rank - 1] *= 2;
  if (layout == Layout::reversed && rank > 0 && shape[rank - 1] > 0) {
    strides[rank - 1] = -strides[rank - 1];
    offset = shape[rank - 1] - 1;
  }
  if (layout == Layout::broadcast && rank > 0) strides[0] = 0;
  if (layout == Layout::scalar) strides = Dims::filled(rank, 0);
  return made.view(shape, strides, offset);
}

void Harness::launch(const Operator& op, std::span<const View> inputs, std::span<const View> outputs,
                     const Attrs& attrs) {
  Launch args{inputs, outputs, attrs, 0, nullptr, 0, nullptr, {DeviceType::cuda, 0}, Float32Math::ieee};
  if (op.workspace_cuda) args.workspace_bytes = op.workspace_cuda(args);
  args.workspace = take(args.workspace_bytes);
  op.launch_cuda(args);
  cuda_check(cudaDeviceSynchronize());
}

Harness::DeviceRun Harness::run(const Operator& op, const Tensors& inputs, const std::vector<TensorSpec>& specs,
                                const Attrs& attrs, int64_t list_length, size_t shift) {
  DeviceRun result;
  used_ = shift;
  std::vector<View> in(inputs.size()), out(specs.size());
  std::vector<char*> storage(inputs.size()), ends;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined()) continue;
    const size_t bytes = inputs[i].storage().bytes();
    storage[i] = take(bytes);
    ends.push_back(storage[i] + bytes);
    cuda_check(cudaMemcpy(storage[i], inputs[i].storage().data(), bytes, cudaMemcpyHostToDevice));
    in[i] = inputs[i].as_view();
    in[i].data = storage[i] + inputs[i].offset() * static_cast<int64_t>(dtype_size(inputs[i].dtype()));
  }
  for (size_t i = 0; i < specs.size(); ++i) {
    result.outputs.push_back(Tensor::empty_strided(
        specs[i].shape, specs[i].has_strides ? specs[i].strides : contiguous_strides(specs[i].shape), specs[i].dtype,
        Device{}, "test"));
    out[i] = result.outputs[i].as_view();
    out[i].data = take(result.outputs[i].nbytes());
    cuda_check(cudaMemset(out[i].data, 0xff, result.outputs[i].nbytes()));  // NaN
    ends.push_back(static_cast<char*>(out[i].data) + result.outputs[i].nbytes());
  }
  Launch args{in, out, attrs, list_length, nullptr, 0, nullptr, {DeviceType::cuda, 0}, Float32Math::ieee};
  if (op.workspace_cuda) {
    std::vector<View> in_shapes = in, out_shapes = out;
    for (View& v : in_shapes) v.data = nullptr;
    for (View& v : out_shapes) v.data = nullptr;
    Launch shapes = args;
    shapes.inputs = in_shapes;
    shapes.outputs = out_shapes;
    args.workspace_bytes = op.workspace_cuda(shapes);
  }
  args.workspace = take(args.workspace_bytes);
  cuda_check(cudaMemset(args.workspace, 0xff, args.workspace_bytes));
  ends.push_back(static_cast<char*>(args.workspace) + args.workspace_bytes);
  for (char* end : ends) cuda_check(cudaMemset(end, 0xa5, kGuard));
  try {
    op.launch_cuda(args);
    cuda_check(cudaDeviceSynchronize());
  } catch (const std::exception& e) {
    result.error = e.what();
    return result;
  }
  for (char* end : ends) {
    unsigned char guard[kGuard];
    cuda_check(cudaMemcpy(guard, end, kGuard, cudaMemcpyDeviceToHost));
    if (std::any_of(guard, guard + kGuard, [](unsigned char c) { return c != 0xa5; }))
      result.error = "wrote behind an operand or the workspace";
  }
  for (size_t i = 0; i < specs.size(); ++i)
    cuda_check(cudaMemcpy(result.outputs[i].data(), out[i].data, result.outputs[i].nbytes(), cudaMemcpyDeviceToHost));
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined() || !op.is_written(static_cast<int>(i), list_length)) continue;
    const auto bytes = static_cast<int64_t>(inputs[i].storage().bytes());
    Tensor whole = Tensor::empty({bytes}, DType::uint8, Device{}, "test");
    cuda_check(cudaMemcpy(whole.data(), storage[i], static_cast<size_t>(bytes), cudaMemcpyDeviceToHost));
    result.written.push_back(whole);
  }
  return result;
}

void Harness::compare(const std::string& label, const Tensor& got, const Tensor& cpu, const Tensor* reference,
                      Rule rule, const double* bounds) {
  const Tensor a = contiguous({got}), b = contiguous({cpu});
  const Tensor va = cast(a, DType::float64), vb = cast(b, DType::float64);
  const auto* x = static_cast<const double*>(va.data());
  const auto* y = static_cast<const double*>(vb.data());
  const auto size = static_cast<int64_t>(dtype_size(got.dtype()));
  const int64_t n = got.numel();
  const Tensor vr = reference ? cast(contiguous({*reference}), DType::float64) : vb;
  const auto* r = static_cast<const double*>(vr.data());
  double largest = 0, cpu_error = 0;
  const auto error = [&](double v, int64_t i) {
    return std::fabs(v - r[i]) / std::max(std::fabs(r[i]), largest * 0x1p-6);
  };
  if (rule == Rule::close) {
    for (int64_t i = 0; i < n; ++i)
      if (std::isfinite(r[i]) && std::isfinite(y[i])) largest = std::max(largest, std::fabs(r[i]));
    for (int64_t i = 0; i < n; ++i)
      if (std::isfinite(r[i]) && std::isfinite(y[i]) && largest > 0) cpu_error = std::max(cpu_error, error(y[i], i));
  }
  int64_t wrong = 0, first = -1;
  for (int64_t i = 0; i < n; ++i) {
    bool fine = same_element(static_cast<const char*>(a.data()) + i * size,
                             static_cast<const char*>(b.data()) + i * size, got.dtype(), x[i], y[i]);
    if (!fine && rule == Rule::close && std::isfinite(x[i]) && std::isfinite(r[i]) && std::isfinite(y[i]))
      fine = error(x[i], i) <= 2 * cpu_error + unit_of(got.dtype());
    if (!fine && bounds && std::isfinite(x[i]))
      fine = std::fabs(x[i] - r[i]) <= bounds[i] + unit_of(got.dtype()) * std::fabs(r[i]);
    if (!fine && rule == Rule::equal) fine = x[i] == y[i];
    if (fine) continue;
    ++wrong;
    if (first < 0) first = i;
  }
  if (wrong == 0) return;
  std::ostringstream out;
  out.precision(17);
  out << label << ": " << wrong << " of " << n << " elements differ, first at " << first << ": got " << x[first]
      << ", CPU " << y[first] << ", float64 " << r[first];
  fail(std::move(out).str());
}

bool Harness::check(const std::string& name, const Tensors& inputs, const Attrs& attrs, Rule rule,
                    int64_t list_length) {
  if (asked_++ % every_ != 0) return true;
  const Operator* op = OperatorRegistry::instance().find(name);
  require(op != nullptr, "no operator ", name);
  const std::string label = case_text(name, inputs, attrs);
  if (!op->launch_cuda) {
    fail(label + ": no CUDA launcher");
    return true;
  }
  // The CPU works on copies of what it writes.
  Tensors on_cpu = inputs, copies;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!inputs[i].defined() || !op->is_written(static_cast<int>(i), list_length)) continue;
    const Storage& from = inputs[i].storage();
    Tensor whole = Tensor::empty({static_cast<int64_t>(from.bytes() / dtype_size(inputs[i].dtype()))},
                                 inputs[i].dtype(), Device{}, "test");
    std::memcpy(whole.data(), from.data(), whole.nbytes());
    copies.push_back(whole);
    on_cpu[i] = whole.view(inputs[i].shape(), inputs[i].strides(), inputs[i].offset());
  }
  Tensors expected;
  std::vector<TensorSpec> specs;
  try {
    if (op->infer) specs = op->infer({inputs, attrs, list_length});
    expected = call(*op, on_cpu, attrs, list_length);
  } catch (const Error&) {
    return false;
  }
  ++cases_;
  Tensors reference;
  std::vector<double> bounds;
  if (rule == Rule::close || rule == Rule::sum) {
    Tensors wide;
    for (const Tensor& t : inputs) wide.push_back(t.defined() && is_floating(t.dtype()) ? cast(t, DType::float64) : t);
    reference = call(*op, wide, attrs, list_length);
  }
  if (rule == Rule::sum) {
    const Tensor squares = call(*op, Tensors{square({cast(inputs[0], DType::float64)})}, attrs, 0).at(0);
    const double length =
        static_cast<double>(inputs[0].numel()) / static_cast<double>(std::max<int64_t>(1, squares.numel()));
    const double unit = inputs[0].dtype() == DType::float64 ? 0x1p-46 : 0x1p-24;  // 2^-46: the reference's own error
    for (int64_t i = 0; i < squares.numel(); ++i)
      bounds.push_back(48 * unit * std::sqrt(static_cast<double*>(squares.data())[i] / (name == "mean" ? length : 1)) +
                       8 * unit * std::fabs(static_cast<double*>(reference[0].data())[i]));
  }
  const DeviceRun first = run(*op, inputs, specs, attrs, list_length, 0);
  if (!first.error.empty()) {
    fail(label + ": " + first.error);
    if (cudaGetLastError() != cudaSuccess || cudaDeviceSynchronize() != cudaSuccess) {
      std::printf("the device is lost after: %s\n", label.c_str());
      std::exit(1);
    }
    return true;
  }
  for (size_t i = 0; i < specs.size(); ++i)
    compare(label, first.outputs[i], expected[i], reference.empty() ? nullptr : &reference[i], rule,
            bounds.empty() ? nullptr : bounds.data());
  for (size_t i = 0; i < copies.size(); ++i) {
    // As elements of the written tensor's dtype: any NaN for a NaN.
    Tensor got = Tensor::empty(copies[i].shape(), copies[i].dtype(), Device{}, "test");
    std::memcpy(got.data(), first.written[i].data(), got.nbytes());
    compare(label + " (written)", got, copies[i], nullptr, rule);
  }
  const DeviceRun second = run(*op, inputs, specs, attrs, list_length, 65536 + 256);
  for (size_t i = 0; i < specs.size(); ++i)
    if (std::memcmp(first.outputs[i].storage().data(), second.outputs[i].storage().data(), first.outputs[i].nbytes()) !=
        0)
      fail(label + ": other bits when run again");
  return true;
}

}  // namespace blutensor::test
