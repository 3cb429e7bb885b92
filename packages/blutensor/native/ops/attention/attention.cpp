// scaled_dot_product_attention, its gradient, and attention_decode.
//
// Shapes: query [..., T, D], key and value [..., S, D] with the same leading axes (batch and heads), but that key heads
// may be fewer (grouped_heads.h); output like query, logsumexp [..., T]. The kernels see one (batch, head) pair at a
// time.
#include "ops/attention/attention.h"

#include <cmath>
#include <limits>

#include "ops/all_operators.h"
#include "ops/attention/attention_kernels.h"
#include "ops/attention/grouped_heads.h"
#include "ops/elementwise/compose.h"
#include "ops/kernels.h"
#include "ops/parallel.h"
#include "ops/registry.h"

namespace blutensor {

DType attention_stat_dtype(DType dtype) { return dtype == DType::float64 ? DType::float64 : DType::float32; }

namespace {

constexpr const char* kName = "scaled_dot_product_attention";

// ---------------------------------------------------------------- geometry

// [..., H, T, D] lies as [..., T, H, D] in memory, so that merging heads afterwards is a view. Row-major below rank
// 4.
TensorSpec heads_inside(DType dtype, const Shape& shape) {
  const int rank = shape.size();
  if (rank < 4) return {dtype, shape, {}, false};
  Shape memory = shape;
  std::swap(memory[rank - 3], memory[rank - 2]);
  Strides strides = contiguous_strides(memory);
  std::swap(strides[rank - 3], strides[rank - 2]);
  return {dtype, shape, strides, true};
}

// The leading axes of an operand; index of a pair to an offset in elements. `inner` trailing axes are left out.
class Pairs {
 public:
  Pairs(const View& view, int inner) : shape_(view.shape), strides_(view.strides), rank_(view.rank() - inner) {}
  int64_t count() const {
    int64_t n = 1;
    for (int i = 0; i < rank_; ++i) n *= shape_[i];
    return n;
  }
  int64_t offset(int64_t pair) const {
    int64_t sum = 0;
    for (int i = rank_ - 1; i >= 0; --i) {
      sum += pair % shape_[i] * strides_[i];
      pair /= shape_[i];
    }
    return sum;
  }

 private:
  Shape shape_;
  Strides strides_;
  int rank_;
};

template <class T>
AttentionMatrix<T> matrix(const View& view, int64_t pair) {
  const int rank = view.rank();
  return {view.ptr<T>() + Pairs(view, 2).offset(pair), view.strides[rank - 2], view.strides[rank - 1]};
}

// Attribute 0 stands for 1 / sqrt(D).
double resolve_scale(double scale, int64_t head_dim) {
  return scale != 0 ? scale : 1.0 / std::sqrt(static_cast<double>(std::max<int64_t>(head_dim, 1)));
}

// ---------------------------------------------------------------- validation

void check_operand(const char* op, const Tensor& t, const char* name, const Tensor& query) {
  require_type(t.dtype() == query.dtype(), "[", op, "] expected ", name, " of dtype ", dtype_name(query.dtype()),
               " like query, got ", describe(t));
  const int rank = query.rank(), heads = rank - 3;
  bool same = t.rank() == rank;
  for (int i = 0; same && i < rank; ++i)
    same = i == rank - 2 || t.shape()[i] == query.shape()[i] ||
           (i == heads && t.shape()[i] > 0 && query.shape()[i] % t.shape()[i] == 0);
  require(same, "[", op, "] expected ", name, " [..., S, D] with the leading axes and the D of query ", query.shape(),
          " (heads, the third axis from the end, may be fewer by a whole factor), got ", t.shape());
  require(rank < kMaxRank || t.rank() < 3 || t.size(-3) == query.size(-3), "[", op,
          "] expected grouped heads in tensors of at most ", kMaxRank - 1, " axes, got ", query.shape());
}

void check_operands(const char* op, const Tensor& query, const Tensor& key, const Tensor& value) {
  require_type(is_floating(query.dtype()), "[", op, "] expected floating-point query, key and value, got ",
               describe(query));
  require(query.rank() >= 2, "[", op, "] expected query [..., T, D], got shape ", query.shape());
  check_operand(op, key, "key", query);
  check_operand(op, value, "value", query);
  require(key.shape() == value.shape(), "[", op, "] expected key and value of one shape, got ", key.shape(), " and ",
          value.shape());
  require(query.size(-1) <= kAttentionMaxHeadDim, "[", op, "] expected a head dimension of at most ",
          kAttentionMaxHeadDim, ", got ", query.size(-1), ": use more heads");
}

Shape without_last(Shape shape) {
  shape.resize(shape.size() - 1);
  return shape;
}

// ---------------------------------------------------------------- forward

std::vector<TensorSpec> infer_forward(const OpCall& call) {
  const Tensor& query = call.inputs[0];
  check_operands(kName, query, call.inputs[1], call.inputs[2]);
  require(std::isfinite(call.attrs.f(1)), "[", kName, "] expected a finite scale, got ", call.attrs.f(1));
  return {heads_inside(query.dtype(), query.shape()),
          {attention_stat_dtype(query.dtype()), without_last(query.shape()), {}, false}};
}

// Tasks below this many multiply-adds are handed out together.
constexpr int64_t kMinTaskWork = 1 << 19;

}  // namespace

void launch_attention_forward(const Launch& ungrouped) {
  const GroupedHeads grouped(ungrouped, "qkk", "qr");
  const Launch& launch = grouped.launch();
  const View &query = launch.inputs[0], &key = launch.inputs[1], &value = launch.inputs[2];
  const View &output = launch.outputs[0], &logsumexp = launch.outputs[1];
  const int rank = query.rank();
  const int64_t num_queries = query.shape[rank - 2], num_keys = key.shape[rank - 2], head_dim = query.shape[rank - 1];
  const int64_t num_pairs = Pairs(query, 2).count(), num_blocks = (num_queries + kAttentionBlock - 1) / kAttentionBlock;
  visit_floating(query.dtype, kName, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Stat = compute_t<T>;
    const int64_t work = 2 * kAttentionBlock * std::max<int64_t>(num_keys * head_dim, 1);
    parallel_for(num_pairs * num_blocks, (kMinTaskWork + work - 1) / work, [&](int64_t begin, int64_t end) {
      for (int64_t task = begin; task < end; ++task) {
        // Causal blocks grow with their index: the longest of a pair come first.
        const int64_t pair = task / num_blocks, block = num_blocks - 1 - task % num_blocks;
        AttentionForward<T, Stat> args;
        args.query = matrix<const T>(query, pair);
        args.key = matrix<const T>(key, pair);
        args.value = matrix<const T>(value, pair);
        args.output = matrix<T>(output, pair);
        args.logsumexp = logsumexp.ptr<Stat>() + pair * num_queries;
        args.num_keys = num_keys;
        args.head_dim = head_dim;
        args.query_begin = block * kAttentionBlock;
        args.query_end = std::min(num_queries, args.query_begin + kAttentionBlock);
        args.causal = launch.attrs.b(0);
        args.scale = resolve_scale(launch.attrs.f(1), head_dim);
        if constexpr (std::is_same_v<T, float>) {
          kernels().attention.forward(args);
        } else {
          attention_forward_reference(args);
        }
      }
    });
  });
}

namespace {

Tensors forward_gradient(GradContext& ctx) {
  static const OpRef backward{"scaled_dot_product_attention_backward"}, full{"full"}, sum{"sum"};
  Tensor grad = ctx.grad_output(0);
  const Tensor grad_logsumexp = ctx.grad_output(1);
  Tensors grads(3);
  if (!grad.defined() && !grad_logsumexp.defined()) return grads;
  if (!grad.defined()) {
    const TensorSpec& spec = ctx.output_spec(0);
    grad = full({}, {Attr::of_ints(spec.shape), Attr::of_float(0), Attr::of_dtype(spec.dtype)});
  }
  Tensors all =
      backward.many({grad, ctx.input(0), ctx.input(1), ctx.input(2), ctx.output(0), ctx.output(1), grad_logsumexp},
                    {ctx.attrs()[0], ctx.attrs()[1]});
  const int rank = ctx.input_spec(1).shape.size();
  for (size_t i = 1; i < 3; ++i)  // of a group's query heads, apart: their sum is the key head's
    if (ctx.needs(static_cast<int>(i)) && all[i].rank() > rank)
      all[i] = sum({all[i]}, {Attr::of_axes({rank - 2}), Attr::of_bool(false)});
  for (int i = 0; i < 3; ++i)
    if (ctx.needs(i)) grads[static_cast<size_t>(i)] = all[static_cast<size_t>(i)];
  return grads;
}

// softmax(scale Q K^T [masked]) V from primitives, with the whole matrix of scores.
Tensors decompose_forward(std::span<const Tensor> inputs, const Attrs& attrs) {
  static const OpRef matmul{"matmul"}, permute{"permute_dims"}, arange{"arange"}, expand{"expand_dims"},
      covers{"greater_equal"}, where{"where"};
  static const OpRef maximum{"max"}, subtract{"subtract"}, exponential{"exp"}, sum{"sum"}, divide{"divide"},
      logarithm{"log"}, add{"add"};
  static const OpRef squeeze{"squeeze"};
  if (const int64_t group = head_group(inputs[0].shape(), inputs[1].shape()); group > 1) {
    const int heads = inputs[0].rank() - 3;
    Shape split = inputs[0].shape();
    split[heads] /= group;
    split.insert(heads + 1, group);
    const auto repeated = [&](const Tensor& t) {
      Shape shape = t.shape();
      shape.insert(heads + 1, group);
      return broadcast_to(expand({t}, {Attr::of_int(heads + 1)}), shape);
    };
    const Tensor all[] = {reshaped(inputs[0], split), repeated(inputs[1]), repeated(inputs[2])};
    const Tensors results = decompose_forward(all, attrs);
    return {reshaped(results[0], inputs[0].shape()), reshaped(results[1], without_last(inputs[0].shape()))};
  }
  const Tensor &query = inputs[0], &key = inputs[1], &value = inputs[2];
  const DType dtype = attention_stat_dtype(query.dtype());
  Dims swapped = Dims::filled(key.rank(), 0);
  for (int i = 0; i < key.rank(); ++i) swapped[i] = i < key.rank() - 2 ? i : 2 * key.rank() - 3 - i;
  Tensor scores = cast_to(matmul({query, permute({key}, {Attr::of_ints(swapped)})}), dtype);
  scores = scaled(scores, resolve_scale(attrs.f(1), query.size(-1)));
  if (attrs.b(0)) {
    const auto positions = [&](int64_t n, int64_t axis) {
      const Tensor p = arange({}, {Attr::of_float(0), Attr::of_float(static_cast<double>(n)), Attr::of_float(1),
                                   Attr::of_dtype(DType::int64)});
      return expand({p}, {Attr::of_int(axis)});
    };
    const Tensor seen = covers({positions(query.size(-2), 1), positions(key.size(-2), 0)});
    scores = where({seen, scores, constant(-std::numeric_limits<double>::infinity(), dtype)});
  }
  const Attr last = Attr::of_axes({query.rank() - 1}), keepdims = Attr::of_bool(true);
  const Tensor top = maximum({scores}, {last, keepdims});
  const Tensor weights = exponential({subtract({scores, top})});
  const Tensor total = sum({weights}, {last, keepdims});
  const Tensor output = matmul({cast_to(divide({weights, total}), query.dtype()), value});
  return {output, squeeze({add({top, logarithm({total})})}, {last})};
}

// ---------------------------------------------------------------- backward

std::vector<TensorSpec> infer_backward(const OpCall& call) {
  const char* op = "scaled_dot_product_attention_backward";
  const Tensor &grad = call.inputs[0], &query = call.inputs[1], &key = call.inputs[2], &output = call.inputs[4];
  check_operands(op, query, key, call.inputs[3]);
  for (const Tensor& t : {grad, output})
    require(t.shape() == query.shape() && t.dtype() == query.dtype(), "[", op,
            "] expected grad_output and output like query ", describe(query), ", got ", describe(t));
  const Shape rows = without_last(query.shape());
  for (const Tensor& t : {call.inputs[5], call.inputs[6]})
    if (t.defined())
      require(t.shape() == rows && t.dtype() == attention_stat_dtype(query.dtype()), "[", op,
              "] expected logsumexp of shape ", rows, ", got ", describe(t));
  require(call.inputs[5].contiguous(), "[", op, "] expected a contiguous logsumexp");
  TensorSpec of_key = heads_inside(key.dtype(), key.shape());
  if (const int64_t group = head_group(query.shape(), key.shape()); group > 1) {
    of_key = {key.dtype(), key.shape(), {}, false};
    of_key.shape.insert(key.rank() - 2, group);
  }
  return {heads_inside(query.dtype(), query.shape()), of_key, of_key};
}

size_t workspace_backward(const Launch& launch) {
  return static_cast<size_t>(launch.inputs[5].numel()) * dtype_size(launch.inputs[5].dtype);
}

}  // namespace

void launch_attention_backward(const Launch& ungrouped) {
  const GroupedHeads grouped(ungrouped, "qqkkqrr", "q..");
  const Launch& launch = grouped.launch();
  const View &grad = launch.inputs[0], &query = launch.inputs[1], &key = launch.inputs[2], &value = launch.inputs[3];
  const View &output = launch.inputs[4], &logsumexp = launch.inputs[5], &grad_logsumexp = launch.inputs[6];
  const int rank = query.rank();
  const int64_t num_queries = query.shape[rank - 2], num_keys = key.shape[rank - 2], head_dim = query.shape[rank - 1];
  visit_floating(query.dtype, kName, [&](auto tag) {
    using T = typename decltype(tag)::type;
    using Stat = compute_t<T>;
    const int64_t work = 5 * std::max<int64_t>(num_queries * num_keys * head_dim, 1);
    parallel_for(Pairs(query, 2).count(), (kMinTaskWork + work - 1) / work, [&](int64_t begin, int64_t end) {
      for (int64_t pair = begin; pair < end; ++pair) {
        AttentionBackward<T, Stat> args;
        args.query = matrix<const T>(query, pair);
        args.key = matrix<const T>(key, pair);
        args.value = matrix<const T>(value, pair);
        args.output = matrix<const T>(output, pair);
        args.grad_output = matrix<const T>(grad, pair);
        args.logsumexp = logsumexp.ptr<const Stat>() + pair * num_queries;
        if (grad_logsumexp.defined()) {
          args.grad_logsumexp = grad_logsumexp.ptr<const Stat>() + Pairs(grad_logsumexp, 1).offset(pair);
          args.grad_logsumexp_stride = grad_logsumexp.strides.back();
        }
        args.delta = static_cast<Stat*>(launch.workspace) + pair * num_queries;
        args.grad_query = matrix<T>(launch.outputs[0], pair);
        args.grad_key = matrix<T>(launch.outputs[1], pair);
        args.grad_value = matrix<T>(launch.outputs[2], pair);
        args.num_queries = num_queries;
        args.num_keys = num_keys;
        args.head_dim = head_dim;
        args.causal = launch.attrs.b(0);
        args.scale = resolve_scale(launch.attrs.f(1), head_dim);
        if constexpr (std::is_same_v<T, float>) {
          kernels().attention.backward(args);
        } else {
          attention_backward_reference(args);
        }
      }
    });
  });
}

namespace {

// ---------------------------------------------------------------- decode

std::vector<TensorSpec> infer_decode(const OpCall& call) {
  const char* op = "attention_decode";
  const Tensor &query = call.inputs[0], &key = call.inputs[1], &position = call.inputs[3];
  check_operands(op, query, key, call.inputs[2]);
  require(query.size(-2) == 1, "[", op, "] expected query [..., 1, D], got shape ", query.shape());
  require_type(position.dtype() == DType::int32 || position.dtype() == DType::int64, "[", op,
               "] expected an int32 or int64 position, got ", describe(position));
  require(position.rank() == 0, "[", op, "] expected a 0-d position, got shape ", position.shape());
  return {heads_inside(query.dtype(), query.shape())};
}

void launch_decode(const Launch& ungrouped) {
  const GroupedHeads grouped(ungrouped, "qkk.", "q");
  const Launch& launch = grouped.launch();
  const View &query = launch.inputs[0], &key = launch.inputs[1], &value = launch.inputs[2],
             &position = launch.inputs[3];
  const int64_t at = position.dtype == DType::int32 ? *position.ptr<int32_t>() : *position.ptr<int64_t>();
  const int64_t capacity = key.shape[key.rank() - 2], head_dim = query.shape.back();
  if (at < 0 || at >= capacity)
    fail(Status::index, "[attention_decode] expected a position in [0, ", capacity, "), the rows of the cache, got ",
         at);
  visit_floating(query.dtype, "attention_decode", [&](auto tag) {
    using T = typename decltype(tag)::type;
    const int64_t work = 2 * std::max<int64_t>((at + 1) * head_dim, 1);
    parallel_for(Pairs(query, 2).count(), (kMinTaskWork / 8 + work - 1) / work, [&](int64_t begin, int64_t end) {
      for (int64_t pair = begin; pair < end; ++pair) {
        AttentionDecode<T> args;
        args.query = matrix<const T>(query, pair);
        args.key = matrix<const T>(key, pair);
        args.value = matrix<const T>(value, pair);
        args.output = matrix<T>(launch.outputs[0], pair);
        args.num_keys = at + 1;
        args.head_dim = head_dim;
        args.scale = resolve_scale(launch.attrs.f(0), head_dim);
        if constexpr (std::is_same_v<T, float>) {
          kernels().attention.decode(args);
        } else {
          attention_decode_reference(args);
        }
      }
    });
  });
}

}  // namespace

void register_qkv_attention(OperatorRegistry& registry);  // qkv_attention.cpp

void register_attention(OperatorRegistry& registry) {
  using Kind = InputSpec::Kind;
  const AttrSpec causal{"is_causal", AttrKind::boolean, Attr::of_bool(false), false, {}};
  const AttrSpec scale{"scale", AttrKind::floating, Attr::of_float(0), false, {}};
  {
    Operator op;
    op.name = kName;
    op.doc =
        "softmax(scale * query @ key^T) @ value over the last two axes, without ever holding the [T, S] matrix. "
        "query: [..., T, D], key and value: [..., S, D] with the same leading axes, any strides, D <= 256, any "
        "floating dtype. Key heads (the third axis from the end) may be fewer by a whole factor G: query head h reads "
        "key head h / G, without a copy. Results: output [..., T, D] and logsumexp [..., T] (natural logarithm of the "
        "sum of "
        "exp(scores); float32, float64 for float64). is_causal: query i sees keys 0..i, also when T != S (PyTorch's "
        "top-left alignment); values behind the mask must be finite. scale 0 stands for 1/sqrt(D). From rank 4 on, "
        "the output lies in memory as [..., T, H, D]: permuting and merging heads copies nothing. Queries that see "
        "only -inf give NaN; S = 0 gives 0. Method: FlashAttention-2 (Dao, 2023).";
    op.category = "Neural network";
    op.inputs = {{"query", Kind::required}, {"key", Kind::required}, {"value", Kind::required}};
    op.attrs = {causal, scale};
    op.num_outputs = 2;
    op.output_names = {"output", "logsumexp"};
    op.infer = infer_forward;
    op.launch_cpu = launch_attention_forward;
    op.gradient = forward_gradient;
    op.save_inputs = 0b111;
    op.save_outputs = 0b11;
    op.decompose = decompose_forward;
    op.grad_cases = {
        {{{1, 2, 5, 3}, {1, 2, 5, 3}, {1, 2, 5, 3}}, {Attr::of_bool(true), Attr::of_float(0)}, "normal"},
        {{{2, 3, 4}, {2, 5, 4}, {2, 5, 4}}, {Attr::of_bool(false), Attr::of_float(0.7)}, "normal"},
        {{{4, 3}, {2, 3}, {2, 3}}, {Attr::of_bool(true), Attr::of_float(-0.5)}, "normal"},
        {{{2, 6, 4, 3}, {2, 2, 4, 3}, {2, 2, 4, 3}}, {Attr::of_bool(true), Attr::of_float(0)}, "normal"},
    };
    registry.add(std::move(op));
  }
  {
    Operator op;
    op.name = "scaled_dot_product_attention_backward";
    op.doc =
        "Gradients of scaled_dot_product_attention with respect to query, key and value; probabilities are "
        "recomputed from logsumexp [..., T]. grad_logsumexp [..., T] may be missing. Each result has the shape of "
        "its operand and, from rank 4 on, lies in memory as [..., T, H, D]; where G query heads share a key head, the "
        "gradients of key and value are [..., H_kv, G, S, D], row-major, and not yet summed over G. The order of every "
        "sum is fixed by the "
        "shapes.";
    op.category = "Gradients";
    op.inputs = {{"grad_output", Kind::required},   {"query", Kind::required},  {"key", Kind::required},
                 {"value", Kind::required},         {"output", Kind::required}, {"logsumexp", Kind::required},
                 {"grad_logsumexp", Kind::optional}};
    op.attrs = {causal, scale};
    op.num_outputs = 3;
    op.output_names = {"grad_query", "grad_key", "grad_value"};
    op.infer = infer_backward;
    op.workspace = workspace_backward;
    op.launch_cpu = launch_attention_backward;
    op.is_public = false;
    registry.add(std::move(op));
  }
  {
    Operator op;
    op.name = "attention_decode";
    op.doc =
        "Attention of one new token over a cache: query [..., 1, D] against rows 0..position of key_cache and "
        "value_cache [..., Tmax, D] (any strides; heads may be fewer, as in scaled_dot_product_attention); result "
        "[..., 1, D]. position: 0-d int32 or int64 in [0, Tmax), "
        "IndexError otherwise. scale 0 stands for 1/sqrt(D). No gradient.";
    op.category = "Neural network";
    op.inputs = {{"query", Kind::required},
                 {"key_cache", Kind::required},
                 {"value_cache", Kind::required},
                 {"position", Kind::required}};
    op.attrs = {scale};
    op.output_names = {"output"};
    op.infer = infer_decode;
    op.launch_cpu = launch_decode;
    registry.add(std::move(op));
  }
  register_qkv_attention(registry);
}

}  // namespace blutensor
