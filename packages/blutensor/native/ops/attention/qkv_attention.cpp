// qkv_attention: attention on the output of a transformer's qkv layer, as it lies in memory.
//
// The same kernels as scaled_dot_product_attention; what differs is that backward writes the gradient of the whole qkv tensor
// in place of three that a concatenation would have to gather.
//
// Shapes: qkv [..., T, 3 C] holds queries, keys and values of H heads with D = C / H channels: [..., T, 3, H, D].
#include <array>
#include <cmath>

#include "ops/attention/attention.h"
#include "ops/attention/attention_kernels.h"
#include "ops/registry.h"

namespace blutensor {

namespace {

constexpr const char* kName = "qkv_attention";

int64_t num_heads(const Attrs& attrs) { return attrs.i(2); }

// [..., T, parts * H * D] as [..., H, T, D]: part `part` of `parts`.
View heads_view(const View& view, int64_t heads, int64_t part, int64_t parts) {
  const int last = view.rank() - 1;
  const int64_t channels = view.shape[last] / parts, step = view.strides[last], head_dim = channels / heads;
  View result = view;
  if (result.data != nullptr)
    result.data = static_cast<char*>(view.data) + part * channels * step * static_cast<int64_t>(dtype_size(view.dtype));
  result.shape[last] = head_dim;
  result.shape.insert(last - 1, heads);
  result.strides.insert(last - 1, head_dim * step);
  return result;
}

// Shape of the output [..., T, C] or of logsumexp [..., H, T].
Shape output_shape(Shape shape) {
  shape.back() /= 3;
  return shape;
}
Shape statistics_shape(Shape shape, int64_t heads) {
  shape.back() = shape[shape.size() - 2];
  shape[shape.size() - 2] = heads;
  return shape;
}

void check(const char* op, const Tensor& qkv, const Attrs& attrs) {
  const int64_t heads = num_heads(attrs);
  require_type(is_floating(qkv.dtype()), "[", op, "] expected floating-point qkv, got ", describe(qkv));
  require(qkv.rank() >= 2, "[", op, "] expected qkv [..., T, 3 C], got shape ", qkv.shape());
  require(qkv.rank() < kMaxRank, "[", op, "] expected qkv of at most ", kMaxRank - 1, " axes, got shape ", qkv.shape());
  require(heads > 0, "[", op, "] expected num_heads of at least 1, got ", heads);
  require(qkv.size(-1) % (3 * heads) == 0, "[", op, "] expected a last axis that 3 * num_heads = ", 3 * heads,
          " divides, got shape ", qkv.shape());
  require(qkv.size(-1) / (3 * heads) <= kAttentionMaxHeadDim, "[", op, "] expected a head dimension of at most ",
          kAttentionMaxHeadDim, ", got ", qkv.size(-1) / (3 * heads), ": use more heads");
  require(std::isfinite(attrs.f(1)), "[", op, "] expected a finite scale, got ", attrs.f(1));
}

std::vector<TensorSpec> infer_forward(const OpCall& call) {
  const Tensor& qkv = call.inputs[0];
  check(kName, qkv, call.attrs);
  return {{qkv.dtype(), output_shape(qkv.shape()), {}, false},
          {attention_stat_dtype(qkv.dtype()), statistics_shape(qkv.shape(), num_heads(call.attrs)), {}, false}};
}

Tensors gradient(GradContext& ctx) {
  static const OpRef backward{"qkv_attention_backward"}, full{"full"};
  Tensor grad = ctx.grad_output(0);
  const Tensor grad_logsumexp = ctx.grad_output(1);
  if (!ctx.needs(0) || (!grad.defined() && !grad_logsumexp.defined())) return Tensors(1);
  if (!grad.defined()) {
    const TensorSpec& spec = ctx.output_spec(0);
    grad = full({}, {Attr::of_ints(spec.shape), Attr::of_float(0), Attr::of_dtype(spec.dtype)});
  }
  return {backward({grad, ctx.input(0), ctx.output(0), ctx.output(1), grad_logsumexp}, ctx.attrs())};
}

// Splitting, moving heads before tokens, attention, and back.
Tensors decompose(std::span<const Tensor> inputs, const Attrs& attrs) {
  static const OpRef split{"split"}, reshape{"reshape"}, permute{"permute_dims"},
      attention{"scaled_dot_product_attention"};
  const Tensor& qkv = inputs[0];
  const int rank = qkv.rank();
  Shape with_heads = output_shape(qkv.shape());
  with_heads.back() /= num_heads(attrs);
  with_heads.insert(rank - 1, num_heads(attrs));
  Dims swapped;
  for (int i = 0; i <= rank; ++i) swapped.push_back(i == rank - 2 ? rank - 1 : i == rank - 1 ? rank - 2 : i);
  Tensors parts = split.many({qkv}, {Attr::of_ints({3}), Attr::of_int(rank - 1)});
  for (Tensor& part : parts) part = permute({reshape({part}, {Attr::of_ints(with_heads)})}, {Attr::of_ints(swapped)});
  const Tensors results = attention.many({parts[0], parts[1], parts[2]}, {attrs[0], attrs[1]});
  const Tensor tokens = permute({results[0]}, {Attr::of_ints(swapped)});
  return {reshape({tokens}, {Attr::of_ints(output_shape(qkv.shape()))}), results[1]};
}

std::vector<TensorSpec> infer_backward(const OpCall& call) {
  const char* op = "qkv_attention_backward";
  const Tensor& qkv = call.inputs[1];
  check(op, qkv, call.attrs);
  const Shape expected = output_shape(qkv.shape()), statistics = statistics_shape(qkv.shape(), num_heads(call.attrs));
  for (const Tensor& t : {call.inputs[0], call.inputs[2]})
    require(t.shape() == expected && t.dtype() == qkv.dtype(), "[", op, "] expected grad_output and output ",
            dtype_name(qkv.dtype()), expected, ", got ", describe(t));
  for (const Tensor& t : {call.inputs[3], call.inputs[4]})
    if (t.defined())
      require(t.shape() == statistics && t.dtype() == attention_stat_dtype(qkv.dtype()), "[", op,
              "] expected logsumexp of shape ", statistics, ", got ", describe(t));
  require(call.inputs[3].contiguous(), "[", op, "] expected a contiguous logsumexp");
  return {{qkv.dtype(), qkv.shape(), {}, false}};
}

size_t workspace_backward(const Launch& launch) {
  return static_cast<size_t>(launch.inputs[3].numel()) * dtype_size(launch.inputs[3].dtype);
}

// The same launch on other operands.
Launch with_operands(const Launch& launch, std::span<const View> inputs, std::span<const View> outputs) {
  return {inputs,        outputs,       launch.attrs, launch.list_length, launch.workspace, launch.workspace_bytes,
          launch.stream, launch.device, launch.math};
}

}  // namespace

void launch_qkv_attention(const Launch& launch, void (*attention)(const Launch&)) {
  const int64_t heads = num_heads(launch.attrs);
  const View& qkv = launch.inputs[0];
  const std::array inputs = {heads_view(qkv, heads, 0, 3), heads_view(qkv, heads, 1, 3), heads_view(qkv, heads, 2, 3)};
  const std::array outputs = {heads_view(launch.outputs[0], heads, 0, 1), launch.outputs[1]};
  attention(with_operands(launch, inputs, outputs));
}

void launch_qkv_attention_backward(const Launch& launch, void (*attention)(const Launch&)) {
  const int64_t heads = num_heads(launch.attrs);
  const View &qkv = launch.inputs[1], &grad_qkv = launch.outputs[0];
  const std::array inputs = {heads_view(launch.inputs[0], heads, 0, 1),
                             heads_view(qkv, heads, 0, 3),
                             heads_view(qkv, heads, 1, 3),
                             heads_view(qkv, heads, 2, 3),
                             heads_view(launch.inputs[2], heads, 0, 1),
                             launch.inputs[3],
                             launch.inputs[4]};
  const std::array outputs = {heads_view(grad_qkv, heads, 0, 3), heads_view(grad_qkv, heads, 1, 3),
                              heads_view(grad_qkv, heads, 2, 3)};
  attention(with_operands(launch, inputs, outputs));
}

void register_qkv_attention(OperatorRegistry& registry);

void register_qkv_attention(OperatorRegistry& registry) {
  using Kind = InputSpec::Kind;
  const std::vector<AttrSpec> attrs = {{"is_causal", AttrKind::boolean, Attr::of_bool(false), false, {}},
                                       {"scale", AttrKind::floating, Attr::of_float(0), false, {}},
                                       {"num_heads", AttrKind::integer, {}, true, {}}};
  {
    Operator op;
    op.name = kName;
    op.doc =
        "scaled_dot_product_attention of the heads in one packed tensor: qkv [..., T, 3 C] is read as [..., T, 3, "
        "num_heads, D] (queries, keys, values; any strides). Results: output [..., T, C], heads merged, and logsumexp "
        "[..., num_heads, T]. The gradient is that of qkv as a whole, so that nothing is split, permuted or "
        "concatenated. is_causal and scale as in scaled_dot_product_attention; D <= 256.";
    op.category = "Neural network";
    op.inputs = {{"qkv", Kind::required}};
    op.attrs = attrs;
    op.num_outputs = 2;
    op.output_names = {"output", "logsumexp"};
    op.infer = infer_forward;
    op.launch_cpu = [](const Launch& launch) { launch_qkv_attention(launch, launch_attention_forward); };
    op.gradient = gradient;
    op.save_inputs = 0b1;
    op.save_outputs = 0b11;
    op.decompose = decompose;
    op.grad_cases = {{{{2, 5, 18}}, {Attr::of_bool(true), Attr::of_float(0), Attr::of_int(2)}, "normal"},
                     {{{4, 9}}, {Attr::of_bool(false), Attr::of_float(0.7), Attr::of_int(1)}, "normal"}};
    registry.add(std::move(op));
  }
  {
    Operator op;
    op.name = "qkv_attention_backward";
    op.doc =
        "Gradient of qkv_attention with respect to qkv [..., T, 3 C], row-major. grad_logsumexp [..., num_heads, T] "
        "may be missing.";
    op.category = "Gradients";
    op.inputs = {{"grad_output", Kind::required},
                 {"qkv", Kind::required},
                 {"output", Kind::required},
                 {"logsumexp", Kind::required},
                 {"grad_logsumexp", Kind::optional}};
    op.attrs = attrs;
    op.output_names = {"grad_qkv"};
    op.infer = infer_backward;
    op.workspace = workspace_backward;
    op.launch_cpu = [](const Launch& launch) { launch_qkv_attention_backward(launch, launch_attention_backward); };
    op.is_public = false;
    registry.add(std::move(op));
  }
}

}  // namespace blutensor
