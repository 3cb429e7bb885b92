// Random numbers: uniform, normal, dropout. Bits depend on (seed, step, operator id, element index) alone.
#include <algorithm>
#include <cmath>

#include "ops/all_operators.h"
#include "ops/elementwise/arguments.h"
#include "ops/elementwise/compose.h"

namespace blutensor {

namespace {

constexpr const char* kCategory = "Random numbers";
constexpr int64_t kWordsPerGroup = 4;

void check_state(const Tensor& state, const std::string& op) {
  require_type(state.dtype() == DType::int64, "[", op, "] expected state of dtype int64, got ",
               dtype_name(state.dtype()));
  require(state.shape() == Shape{2}, "[", op, "] expected state {seed, step} of shape (2,), got ", state.shape());
}

RandomStream stream_of(const View& state, int64_t op_id) {
  const auto* p = state.ptr<const int64_t>();
  return {p[0], p[state.strides[0]], op_id};
}

// Words [first, first + n) of the stream; `buffer` has room for n + 2 * kWordsPerGroup. Returns where the first one is.
const uint32_t* draw_words(const RandomStream& stream, int64_t first, int64_t n, uint32_t* buffer) {
  const int64_t group = first / kWordsPerGroup, end = (first + n + kWordsPerGroup - 1) / kWordsPerGroup;
  kernels().random.bits(end - group, buffer, stream, group);
  return buffer + (first - group * kWordsPerGroup);
}

// ---------------------------------------------------------------- distributions

// A number on [0, 1) from 53 of 64 bits.
double unit_double(const uint32_t* w) { return static_cast<double>(((uint64_t{w[0]} << 32) | w[1]) >> 11) * 0x1p-53; }

// Number i of the block from the words that belong to it: one word for float32, two for float64.
struct Uniform {
  double low, width;
  void fill(int64_t n, const uint32_t* words, float* out) const {
    // Rounding must not reach the open end.
    const float largest = std::nextafter(static_cast<float>(low + width), static_cast<float>(low));
    kernels().random.uniform_f32(n, out, words, low, width, largest);
  }
  void fill(int64_t n, const uint32_t* words, double* out) const {
    const double below = std::nextafter(low + width, low);
    for (int64_t i = 0; i < n; ++i) out[i] = std::min(below, low + width * unit_double(words + 2 * i));
  }
};

// Box and Muller (1958): two uniform numbers give two normal ones. n is even.
struct Normal {
  double mean, deviation;
  void fill(int64_t n, const uint32_t* words, float* out) const {
    kernels().random.normal_f32(n, out, words, static_cast<float>(mean), static_cast<float>(deviation));
  }
  void fill(int64_t n, const uint32_t* words, double* out) const {
    for (int64_t i = 0; i < n; i += 2) {
      const double u = unit_double(words + 2 * i) + 0x1p-54, angle = 2 * M_PI * unit_double(words + 2 * i + 2);
      const double radius = deviation * std::sqrt(-2 * std::log(u));
      out[i] = mean + radius * std::cos(angle);
      out[i + 1] = mean + radius * std::sin(angle);
    }
  }
};

// Blocks start at multiples of kBlock, hence of a group: any element comes out the same wherever its block begins.
template <class T, class Distribution>
void generate(const View& out, const RandomStream& stream, const Distribution& distribution) {
  constexpr int64_t words_per_number = sizeof(T) / sizeof(uint32_t);
  const CastKernel cast = kernels().copy.from_to(dtype_of<T>::value, out.dtype);
  const auto size = static_cast<int64_t>(dtype_size(out.dtype));
  const int64_t total = out.numel();
  parallel_for((total + kBlock - 1) / kBlock, 8, [&](int64_t begin, int64_t end) {
    uint32_t words[kBlock * words_per_number + 2 * kWordsPerGroup];
    T block[kBlock];
    for (int64_t b = begin; b < end; ++b) {
      const int64_t first = b * kBlock, length = std::min(kBlock, total - first), even = (length + 1) / 2 * 2;
      distribution.fill(even, draw_words(stream, first * words_per_number, even * words_per_number, words), block);
      cast(length, static_cast<char*>(out.data) + first * size, 1, block, 1);
    }
  });
}

enum DrawAttr { kShape, kFirst, kSecond, kDType, kOpId };

template <class Distribution>
void launch_draw(const Launch& args) {
  const RandomStream stream = stream_of(args.inputs[0], args.attrs.i(kOpId));
  const double first = args.attrs.f(kFirst), second = args.attrs.f(kSecond);
  const Distribution distribution =
      std::is_same_v<Distribution, Uniform> ? Distribution{first, second - first} : Distribution{first, second};
  if (args.outputs[0].dtype == DType::float64)
    generate<double>(args.outputs[0], stream, distribution);
  else
    generate<float>(args.outputs[0], stream, distribution);
}

template <class Distribution>
Operator draw_operator(const char* name, const char* doc, const char* first, const char* second) {
  Operator o;
  o.name = name;
  o.doc = doc;
  o.category = kCategory;
  o.inputs = {{.name = "state"}};
  o.attrs = {{"shape", AttrKind::integers, {}, true, {}},
             {first, AttrKind::floating, Attr::of_float(0), false, {}},
             {second, AttrKind::floating, Attr::of_float(1), false, {}},
             {"dtype", AttrKind::dtype, Attr::of_dtype(DType::float32), false, {}},
             {"op_id", AttrKind::integer, Attr::of_int(0), false, {}}};
  o.output_names = {"out"};
  o.infer = [op = std::string(name)](const OpCall& call) -> std::vector<TensorSpec> {
    check_state(call.inputs[0], op);
    num_elements(call.attrs.ints(kShape));  // checks the sizes
    const double low = call.attrs.f(kFirst), high = call.attrs.f(kSecond);
    require(
        std::isfinite(low) && std::isfinite(high) && (std::is_same_v<Distribution, Uniform> ? low <= high : high >= 0),
        "[", op, "] expected finite ", std::is_same_v<Distribution, Uniform> ? "low <= high" : "mean and std >= 0",
        ", got ", low, " and ", high);
    require_type(is_floating(call.attrs.dtype(kDType)), "[", op, "] expected a floating-point dtype, got ",
                 dtype_name(call.attrs.dtype(kDType)));
    return {{call.attrs.dtype(kDType), call.attrs.ints(kShape), {}, false}};
  };
  o.launch_cpu = launch_draw<Distribution>;
  return o;
}

// ---------------------------------------------------------------- dropout

// An element stays when its 24 random bits are below this: u < 1 - p exactly, u = bits / 2^24.
uint32_t keep_threshold(double p) {
  return static_cast<uint32_t>(std::ceil(static_cast<double>(static_cast<float>(1 - p)) * 0x1p24));
}
double keep_scale(double p) { return p < 1 ? 1 / (1 - p) : 0; }

void launch_dropout(const Launch& args) {
  const View &x = args.inputs[0], &out = args.outputs[0];
  const double p = args.attrs.f(0), scale = keep_scale(p);
  const RandomStream stream = stream_of(args.inputs[1], args.attrs.i(1));
  const uint32_t threshold = keep_threshold(p);
  const DType compute = compute_dtype(x.dtype);
  const BlockOperand inputs[] = {{&x, compute}};
  // `out` is row-major, so positions of the loop are row-major indices.
  block_loop({&out, compute}, inputs, false, [&](int64_t n, void* o, const auto& in, int64_t position) {
    uint32_t words[kBlock + 2 * kWordsPerGroup];
    for (int64_t first = 0; first < n; first += kBlock) {
      const int64_t length = std::min(kBlock, n - first);
      const uint32_t* random = draw_words(stream, position + first, length, words);
      if (compute == DType::float32) {
        kernels().random.dropout_f32(length, static_cast<float*>(o) + first,
                                     static_cast<const float*>(in[0].data) + first, random, threshold,
                                     static_cast<float>(scale));
      } else {
        for (int64_t i = 0; i < length; ++i)
          static_cast<double*>(o)[first + i] =
              static_cast<const double*>(in[0].data)[first + i] * ((random[i] >> 8) < threshold ? scale : 0);
      }
    }
  });
}

Operator dropout_operator(const char* name, const char* input) {
  Operator o;
  o.name = name;
  o.category = kCategory;
  o.inputs = {{.name = input}, {.name = "state"}};
  o.attrs = {{"p", AttrKind::floating, Attr::of_float(0.5), false, {}},
             {"op_id", AttrKind::integer, Attr::of_int(0), false, {}}};
  o.output_names = {"out"};
  o.infer = [op = o.name](const OpCall& call) -> std::vector<TensorSpec> {
    const Tensor& x = call.inputs[0];
    check_state(call.inputs[1], op);
    require_type(is_floating(x.dtype()), "[", op, "] expected a floating-point tensor, got ", dtype_name(x.dtype()));
    require(call.attrs.f(0) >= 0 && call.attrs.f(0) <= 1, "[", op, "] expected p from 0 to 1, got ", call.attrs.f(0));
    return {{x.dtype(), x.shape(), {}, false}};
  };
  o.launch_cpu = launch_dropout;
  o.save_inputs = 2;
  o.gradient = [](GradContext& context) -> Tensors {
    static const OpRef backward{"dropout_backward"};
    const Tensor g = context.grad_output(0);
    if (!g.defined() || !context.needs(0)) return {Tensor{}, Tensor{}};
    return {backward({g, context.input(1)}, context.attrs()), Tensor{}};
  };
  return o;
}

Tensors decompose_dropout(std::span<const Tensor> inputs, const Attrs& attrs) {
  static const OpRef uniform{"uniform"}, less{"less"}, where{"where"}, multiply{"multiply"};
  const Tensor& x = inputs[0];
  const double p = attrs.f(0);
  const Tensor u = uniform({inputs[1]}, {Attr::of_ints(x.shape()), Attr::of_float(0), Attr::of_float(1),
                                         Attr::of_dtype(DType::float32), attrs[1]});
  const Tensor kept = less({u, constant(1 - p, DType::float32)});
  return {multiply({x, where({kept, constant(keep_scale(p), x.dtype()), constant(0, x.dtype())})})};
}

void launch_advance(const Launch& args) {
  const View& state = args.inputs[0];
  state.ptr<int64_t>()[state.strides[0]] += 1;
}

}  // namespace

void register_random(OperatorRegistry& registry) {
  registry.add(draw_operator<Uniform>("uniform",
                                      "Numbers distributed uniformly on [low, high): 24 random bits each (53 for "
                                      "float64). state: int64 [2], {seed, step}; op_id tells the random "
                                      "operators of one step apart; out: `shape`, floating dtype.",
                                      "low", "high"));
  registry.add(draw_operator<Normal>("normal",
                                     "Numbers distributed normally, by Box and Muller's method. state: "
                                     "int64 [2], {seed, step}; op_id tells the random operators of one "
                                     "step apart; out: `shape`, floating dtype.",
                                     "mean", "std"));

  Operator dropout = dropout_operator("dropout", "x");
  dropout.doc =
      "x / (1 - p) with probability 1 - p and 0 else, element by element (Srivastava et al. 2014). x: any shape, "
      "floating; out: the same. The "
      "same state and op_id give the same mask, from which backward makes it again.";
  dropout.decompose = decompose_dropout;
  registry.add(std::move(dropout));
  Operator backward = dropout_operator("dropout_backward", "grad");
  backward.doc = "grad under the mask of dropout: the gradient of dropout.";
  backward.category = "Gradient helpers";
  backward.is_public = false;
  registry.add(std::move(backward));

  Operator advance;
  advance.name = "rng_advance_";
  advance.doc = "Ends a step of the random generator: state[1] += 1. state: int64 [2], {seed, step}.";
  advance.category = kCategory;
  advance.is_public = false;
  advance.inputs = {{.name = "state", .written = true}};
  advance.num_outputs = 0;
  advance.infer = [](const OpCall& call) -> std::vector<TensorSpec> {
    check_state(call.inputs[0], "rng_advance_");
    return {};
  };
  advance.launch_cpu = launch_advance;
  advance.effect = Effect::writes;
  registry.add(std::move(advance));
}

}  // namespace blutensor
