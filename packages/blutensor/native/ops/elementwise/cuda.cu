// Which launcher serves which elementwise operator.
#include "ops/elementwise/cuda.h"

#include "ops/cuda/launch.h"
#include "ops/cuda/table.h"

namespace blutensor {

namespace {

template <UnaryOp op>
void launch_unary(const Launch& args) {
  cuda::run_unary(op, args.outputs[0], args.inputs[0], cuda::stream_of(args));
}

template <BinaryOp op>
void launch_binary(const Launch& args) {
  const View &a = args.inputs[0], &b = args.inputs[1];
  cuda::run_binary(op, promote(a.dtype, b.dtype), args.outputs[0], a, b, cuda::stream_of(args));
}

bool is_tanh(const Attrs& attrs) { return attrs.s(0) == "tanh"; }

void launch_gelu(const Launch& args) {
  cuda::run_unary(is_tanh(args.attrs) ? UnaryOp::gelu_tanh : UnaryOp::gelu_erf, args.outputs[0], args.inputs[0],
                  cuda::stream_of(args));
}
void launch_gelu_backward(const Launch& args) {
  cuda::run_binary(is_tanh(args.attrs) ? BinaryOp::gelu_tanh_backward : BinaryOp::gelu_erf_backward,
                   args.outputs[0].dtype, args.outputs[0], args.inputs[0], args.inputs[1], cuda::stream_of(args));
}

}  // namespace

void add_elementwise_cuda(CudaTable& table) {
  table.add("negative", launch_unary<UnaryOp::negative>);
  table.add("abs", launch_unary<UnaryOp::absolute>);
  table.add("sign", launch_unary<UnaryOp::sign>);
  table.add("square", launch_unary<UnaryOp::square>);
  table.add("reciprocal", launch_unary<UnaryOp::reciprocal>);
  table.add("exp", launch_unary<UnaryOp::exp>);
  table.add("log", launch_unary<UnaryOp::log>);
  table.add("sqrt", launch_unary<UnaryOp::sqrt>);
  table.add("rsqrt", launch_unary<UnaryOp::rsqrt>);
  table.add("tanh", launch_unary<UnaryOp::tanh>);
  table.add("erf", launch_unary<UnaryOp::erf>);
  table.add("isnan", launch_unary<UnaryOp::isnan>);
  table.add("isfinite", launch_unary<UnaryOp::isfinite>);
  table.add("logical_not", launch_unary<UnaryOp::logical_not>);
  table.add("gelu", launch_gelu);
  table.add("gelu_backward", launch_gelu_backward);

  table.add("add", launch_binary<BinaryOp::add>);
  table.add("subtract", launch_binary<BinaryOp::subtract>);
  table.add("multiply", launch_binary<BinaryOp::multiply>);
  table.add("divide", launch_binary<BinaryOp::divide>);
  table.add("maximum", launch_binary<BinaryOp::maximum>);
  table.add("minimum", launch_binary<BinaryOp::minimum>);
  table.add("pow", launch_binary<BinaryOp::power>);
  table.add("equal", launch_binary<BinaryOp::equal>);
  table.add("not_equal", launch_binary<BinaryOp::not_equal>);
  table.add("less", launch_binary<BinaryOp::less>);
  table.add("less_equal", launch_binary<BinaryOp::less_equal>);
  table.add("greater", launch_binary<BinaryOp::greater>);
  table.add("greater_equal", launch_binary<BinaryOp::greater_equal>);
  table.add("logical_and", launch_binary<BinaryOp::logical_and>);
  table.add("logical_or", launch_binary<BinaryOp::logical_or>);
  table.add("logical_xor", launch_binary<BinaryOp::logical_xor>);
  table.add("where", cuda::launch_where);
}

}  // namespace blutensor
