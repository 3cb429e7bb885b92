// The operator descriptor: everything the system knows about one operator, in one place.
//
// Eager execution, autograd, capture, the Python bindings, the stubs, the gradient checks and the operator
// reference are all driven by the table of these descriptors (ops/registry.h).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tensor/tensor.h"

namespace blutensor {

// ---------------------------------------------------------------- attributes

enum class AttrKind : int32_t { integer, floating, boolean, integers, dtype, string, floats, axes };

struct Attr {
  AttrKind kind = AttrKind::integer;
  int64_t i = 0;  // integer, boolean, dtype; axes: whether all of them are meant
  double f = 0;
  Dims ints;  // integers (shapes), axes
  std::string s;
  std::vector<double> floats;  // one value for all tensors of a list, or one for each

  static Attr of_int(int64_t v) {
    Attr a;
    a.i = v;
    return a;
  }
  static Attr of_bool(bool v) {
    Attr a;
    a.kind = AttrKind::boolean;
    a.i = v;
    return a;
  }
  static Attr of_float(double v) {
    Attr a;
    a.kind = AttrKind::floating;
    a.f = v;
    return a;
  }
  static Attr of_ints(Dims v) {
    Attr a;
    a.kind = AttrKind::integers;
    a.ints = v;
    return a;
  }
  // Over these axes; over none of them when there are none.
  static Attr of_axes(Dims v) {
    Attr a;
    a.kind = AttrKind::axes;
    a.ints = v;
    return a;
  }
  static Attr of_all_axes() {
    Attr a;
    a.kind = AttrKind::axes;
    a.i = 1;
    return a;
  }
  static Attr of_dtype(DType v) {
    Attr a;
    a.kind = AttrKind::dtype;
    a.i = static_cast<int64_t>(v);
    return a;
  }
  static Attr of_string(std::string v) {
    Attr a;
    a.kind = AttrKind::string;
    a.s = std::move(v);
    return a;
  }
  static Attr of_floats(std::vector<double> v) {
    Attr a;
    a.kind = AttrKind::floats;
    a.floats = std::move(v);
    return a;
  }
  bool all_axes() const { return i != 0; }   // of axes
  bool operator==(const Attr& other) const;  // bitwise for floats: NaN equals itself
};
std::string to_text(const Attr& attr);

// Attribute values of one call, in the order of the descriptor's `attrs`.
class Attrs {
 public:
  Attrs() = default;
  Attrs(std::initializer_list<Attr> values) : values_(values) {}
  explicit Attrs(std::vector<Attr> values) : values_(std::move(values)) {}
  int64_t i(size_t k) const { return values_[k].i; }
  bool b(size_t k) const { return values_[k].i != 0; }
  double f(size_t k) const { return values_[k].f; }
  const Dims& ints(size_t k) const { return values_[k].ints; }
  DType dtype(size_t k) const { return static_cast<DType>(values_[k].i); }
  const std::string& s(size_t k) const { return values_[k].s; }
  const std::vector<double>& floats(size_t k) const { return values_[k].floats; }
  size_t size() const { return values_.size(); }
  const Attr& operator[](size_t k) const { return values_[k]; }
  bool operator==(const Attrs&) const = default;

 private:
  std::vector<Attr> values_;
};

struct AttrSpec {
  std::string name;
  AttrKind kind;
  Attr default_value;
  bool required = false;
  std::vector<std::string> choices;  // of a string attribute; empty: any
};

// ---------------------------------------------------------------- operands

struct InputSpec {
  enum class Kind : int32_t {
    required,       // one tensor
    optional,       // one tensor or an undefined handle
    list,           // any number of tensors; lists come last, and all lists of one call have the same length
    optional_list,  // a list with undefined handles where there is nothing to give
  };
  std::string name;
  Kind kind = Kind::required;
  bool written = false;         // the operator writes it in place
  bool accepts_scalar = false;  // Python numbers become 0-d tensors of the other operand's dtype

  bool is_list() const { return kind == Kind::list || kind == Kind::optional_list; }
  bool is_optional() const { return kind == Kind::optional || kind == Kind::optional_list; }
};

// Shape, dtype and layout of an output that the operator allocates.
struct TensorSpec {
  DType dtype = DType::float32;
  Shape shape;
  Strides strides;  // a permutation of row-major; leave has_strides false for row-major
  bool has_strides = false;
};

// A view operator's result: same storage, other geometry. Offset is absolute, in elements.
struct ViewSpec {
  Shape shape;
  Strides strides;
  int64_t offset = 0;
};

// ---------------------------------------------------------------- the call, as its parts see it

// Inputs and attributes before execution: inference and validation.
struct OpCall {
  std::span<const Tensor> inputs;  // flattened: fixed inputs, then list 0, list 1, ...
  const Attrs& attrs;
  int64_t list_length = 0;  // of each list input
};

// How float32 matrix products run on CUDA: with IEEE multiply-adds, or on the tensor cores with operands rounded to
// nearest tf32. The host always computes IEEE float32.
enum class Float32Math : int32_t { ieee = 0, tf32 = 1 };

// Execution: raw memory only.
struct Launch {
  std::span<const View> inputs;
  std::span<const View> outputs;
  const Attrs& attrs;
  int64_t list_length = 0;
  void* workspace = nullptr;
  size_t workspace_bytes = 0;
  void* stream = nullptr;  // cudaStream_t of the device; nullptr on CPU
  Device device = {};
  Float32Math math = Float32Math::ieee;
};

// A gradient buffer that a gradient function may write itself instead of returning a fresh tensor.
struct GradTarget {
  Tensor buffer;            // undefined: there is none
  bool accumulate = false;  // add to what is there, or overwrite
};

class GradContext {
 public:
  virtual ~GradContext() = default;
  virtual const Attrs& attrs() const = 0;
  virtual int64_t list_length() const = 0;
  virtual int num_inputs() const = 0;
  // Saved tensors (the descriptor's save_* masks); checked against writes in place since they were saved.
  virtual Tensor input(int i) const = 0;
  virtual Tensor output(int i) const = 0;
  virtual bool has_input(int i) const = 0;                // an optional input was given
  virtual const TensorSpec& input_spec(int i) const = 0;  // shape, dtype, strides, known without saving
  virtual const TensorSpec& output_spec(int i) const = 0;
  virtual Device device() const = 0;
  // Gradient with respect to output i; undefined when nothing downstream used that output.
  virtual Tensor grad_output(int i) const = 0;
  virtual bool needs(int i) const = 0;  // is the gradient of input i wanted?
  // A buffer to write the gradient of input i into. After writing, call consumed(i) and return an undefined tensor.
  virtual GradTarget target(int i) = 0;
  virtual void consumed(int i) = 0;
  // The gradient function has no more use for a saved tensor: its memory need not wait for the end of the function,
  // where a replay would not keep it either. Afterwards input(i) or output(i) may be undefined.
  virtual void done_with_input(int i) = 0;
  virtual void done_with_output(int i) = 0;
};

using InferFn = std::function<std::vector<TensorSpec>(const OpCall&)>;
// An empty result: the strides allow no view, and the dispatcher asks again with a contiguous copy.
using ViewFn = std::function<std::vector<ViewSpec>(const OpCall&)>;
using WorkspaceFn = std::function<size_t(const Launch&)>;  // pointers are null
using LaunchFn = std::function<void(const Launch&)>;
// Gradients of all inputs, in order (undefined where not needed). Built from operator calls, so that they are
// captured, planned and differentiable like everything else.
using GradientFn = std::function<Tensors(GradContext&)>;
using DecomposeFn = std::function<Tensors(std::span<const Tensor> inputs, const Attrs&)>;

enum class Effect : int32_t { pure, writes, communicates };
enum class Lane : int32_t { compute = 0, communication = 1, copy = 2 };
inline constexpr int kNumLanes = 3;

// One row of the gradient checks that the table generates (tests/test_operator_table.py).
struct GradCase {
  std::vector<Shape> shapes;      // of the required float inputs
  std::vector<Attr> attrs;        // empty: defaults
  std::string domain = "normal";  // "positive", "away_from_zero", "unit" ...: how inputs are drawn
};

struct Operator {
  std::string name;
  std::string doc;       // one paragraph: what it computes, shapes, dtypes
  std::string category;  // heading of the operator reference
  std::vector<InputSpec> inputs;
  std::vector<AttrSpec> attrs;
  int num_outputs = 1;  // 0: writes its inputs only
  std::vector<std::string> output_names;

  InferFn infer;  // allocating operators
  ViewFn view;    // view operators: instead of infer and launch; no result: no view can express it, take one of a copy
  WorkspaceFn workspace;  // optional
  LaunchFn launch_cpu;
  LaunchFn launch_cuda;        // both from the table of ops/cuda/table.cpp
  WorkspaceFn workspace_cuda;  // optional
  GradientFn gradient;         // absent: not differentiable
  uint64_t save_inputs = 0;    // bit i: backward reads input i
  uint64_t save_outputs = 0;
  // Cheap beside what its outputs take: whoever saves one for backward saves how to make it anew instead. All inputs
  // must be saved.
  bool recompute = false;
  DecomposeFn decompose;  // composite operators: into primitives
  Effect effect = Effect::pure;
  Lane lane = Lane::compute;
  bool is_public = true;  // false: no Python function (gradient helpers, optimizer internals)
  std::vector<GradCase> grad_cases;

  uint32_t id = 0;            // position in the table
  const char* tag = nullptr;  // interned name, for allocation tags and messages
  int fixed_inputs() const;
  int num_lists() const;
  bool is_written(int flat_index, int64_t list_length) const;
};

}  // namespace blutensor
