// Which launcher serves which elementwise operator.
#include "ops/elementwise/cuda.h"

#include "ops/cuda/launch.h"
#include "ops/cuda/table.h"

namespace blutensor {

namespace {

// Logic takes any two dtypes, also those without a common one: what matters is whether they are zero.
DType common_dtype(BinaryOp op, DType a, DType b) {
  if (has_bool_operands(op) && !is_floating(a) && !is_floating(b)) return DType::uint64;
  return promote(a, b);
}

void launch_clip(const Launch& args) {
  const View &out = args.outputs[0], &low = args.inputs[1], &high = args.inputs[2];
  const cudaStream_t stream = cuda::stream_of(args);
  View x = args.inputs[0];
  if (low.defined()) {
    cuda::run_binary(BinaryOp::maximum, out.dtype, out, x, low, stream);
    x = out;
  }
  if (high.defined()) {
    cuda::run_binary(BinaryOp::minimum, out.dtype, out, x, high, stream);
    x = out;
  }
  if (!low.defined() && !high.defined()) cuda::run_binary(BinaryOp::maximum, out.dtype, out, x, x, stream);
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
  const auto unary = [&](const char* name, UnaryOp op) {
    table.add(name, [op](const Launch& args) {
      cuda::run_unary(op, args.outputs[0], args.inputs[0], cuda::stream_of(args));
    });
  };
  unary("negative", UnaryOp::negative);
  unary("abs", UnaryOp::absolute);
  unary("sign", UnaryOp::sign);
  unary("square", UnaryOp::square);
  unary("relu", UnaryOp::relu);
  unary("floor", UnaryOp::floor);
  unary("ceil", UnaryOp::ceil);
  unary("trunc", UnaryOp::trunc);
  unary("round", UnaryOp::round);
  unary("reciprocal", UnaryOp::reciprocal);
  unary("exp", UnaryOp::exp);
  unary("log", UnaryOp::log);
  unary("sqrt", UnaryOp::sqrt);
  unary("rsqrt", UnaryOp::rsqrt);
  unary("tanh", UnaryOp::tanh);
  unary("erf", UnaryOp::erf);
  unary("sigmoid", UnaryOp::sigmoid);
  unary("silu", UnaryOp::silu);
  unary("sin", UnaryOp::sin);
  unary("cos", UnaryOp::cos);
  unary("tan", UnaryOp::tan);
  unary("asin", UnaryOp::asin);
  unary("acos", UnaryOp::acos);
  unary("atan", UnaryOp::atan);
  unary("sinh", UnaryOp::sinh);
  unary("cosh", UnaryOp::cosh);
  unary("asinh", UnaryOp::asinh);
  unary("acosh", UnaryOp::acosh);
  unary("atanh", UnaryOp::atanh);
  unary("expm1", UnaryOp::expm1);
  unary("log1p", UnaryOp::log1p);
  unary("log2", UnaryOp::log2);
  unary("log10", UnaryOp::log10);
  unary("bitwise_invert", UnaryOp::bitwise_invert);
  unary("isnan", UnaryOp::isnan);
  unary("isfinite", UnaryOp::isfinite);
  unary("isinf", UnaryOp::isinf);
  unary("signbit", UnaryOp::signbit);
  unary("logical_not", UnaryOp::logical_not);
  table.add("gelu", launch_gelu);
  table.add("gelu_backward", launch_gelu_backward);

  const auto binary = [&](const char* name, BinaryOp op) {
    table.add(name, [op](const Launch& args) {
      const View &a = args.inputs[0], &b = args.inputs[1];
      cuda::run_binary(op, common_dtype(op, a.dtype, b.dtype), args.outputs[0], a, b, cuda::stream_of(args));
    });
  };
  binary("add", BinaryOp::add);
  binary("subtract", BinaryOp::subtract);
  binary("multiply", BinaryOp::multiply);
  binary("divide", BinaryOp::divide);
  binary("maximum", BinaryOp::maximum);
  binary("minimum", BinaryOp::minimum);
  binary("pow", BinaryOp::power);
  binary("floor_divide", BinaryOp::floor_divide);
  binary("remainder", BinaryOp::remainder);
  binary("silu_backward", BinaryOp::silu_backward);
  binary("atan2", BinaryOp::atan2);
  binary("hypot", BinaryOp::hypot);
  binary("logaddexp", BinaryOp::logaddexp);
  binary("copysign", BinaryOp::copysign);
  binary("nextafter", BinaryOp::nextafter);
  binary("bitwise_and", BinaryOp::bitwise_and);
  binary("bitwise_or", BinaryOp::bitwise_or);
  binary("bitwise_xor", BinaryOp::bitwise_xor);
  binary("bitwise_left_shift", BinaryOp::bitwise_left_shift);
  binary("bitwise_right_shift", BinaryOp::bitwise_right_shift);
  binary("equal", BinaryOp::equal);
  binary("not_equal", BinaryOp::not_equal);
  binary("less", BinaryOp::less);
  binary("less_equal", BinaryOp::less_equal);
  binary("greater", BinaryOp::greater);
  binary("greater_equal", BinaryOp::greater_equal);
  binary("logical_and", BinaryOp::logical_and);
  binary("logical_or", BinaryOp::logical_or);
  binary("logical_xor", BinaryOp::logical_xor);
  table.add("where", cuda::launch_where);
  table.add("clip", launch_clip);
}

}  // namespace blutensor
