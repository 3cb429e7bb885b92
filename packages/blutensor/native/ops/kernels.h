// The kernel table: which function serves which operator on this CPU.
//
// Every entry starts as the portable reference and is overridden by what the CPU supports; kernels.cpp is the one place
// that shows what is specialised for what. An operator's folder declares its kernel signatures in <op>_kernels.h as one
// struct of function pointers; add it here as a member.
#pragma once

#include "ops/attention/attention_kernels.h"
#include "ops/copy/copy_kernels.h"
#include "ops/cross_entropy/cross_entropy_kernels.h"
#include "ops/elementwise/elementwise_kernels.h"
#include "ops/layer_norm/layer_norm_kernels.h"
#include "ops/linear_cross_entropy/linear_cross_entropy_kernels.h"
#include "ops/optimizer/optimizer_kernels.h"
#include "ops/random/random_kernels.h"
#include "ops/reduce/reduce_kernels.h"
#include "ops/rotary/rotary_kernels.h"
#include "ops/softmax/softmax_kernels.h"

namespace blutensor {

enum class Isa : int { reference = 0, avx2 = 1, avx512 = 2 };

struct KernelTable {
  Isa isa = Isa::reference;
  CopyKernels copy;
  ElementwiseKernels elementwise;
  ReduceKernels reduce;
  RandomKernels random;
  LayerNormKernels layer_norm;
  RotaryKernels rotary;
  LinearCrossEntropyKernels linear_cross_entropy;
  OptimizerKernels optimizer;
  SoftmaxKernels softmax;
  CrossEntropyKernels cross_entropy;
  AttentionKernels attention;
};

// The active table: the best that CPU and build support, unless set_isa() chose another.
const KernelTable& kernels();
bool supports_isa(Isa isa);
void set_isa(Isa isa);  // throws Status::unsupported; for tests and measurements
Isa active_isa();

}  // namespace blutensor
