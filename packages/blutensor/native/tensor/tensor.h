// Tensor: a handle to shape, strides, offset and dtype over shared storage, with lazy autograd metadata.
#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "tensor/intrusive.h"
#include "tensor/shape.h"
#include "tensor/storage.h"

namespace blutensor {

// What autograd attaches to a tensor (autograd/node.h defines it); nullptr until a gradient is wanted.
class AutogradMeta;

// What a kernel sees: memory, dtype, shape, strides. Owns nothing.
struct View {
  void* data = nullptr;
  DType dtype = DType::float32;
  Shape shape;
  Strides strides;  // in elements

  bool defined() const { return defined_; }
  int rank() const { return shape.size(); }
  int64_t numel() const { return num_elements(shape); }
  bool contiguous() const { return is_contiguous(shape, strides); }
  template <class T>
  T* ptr() const {
    return static_cast<T*>(data);
  }
  bool defined_ = false;  // false: an optional operand that was not given
};

class TensorImpl final : public RefCounted {
 public:
  TensorImpl(Ref<Storage> storage, DType dtype, Shape shape, Strides strides, int64_t offset);
  ~TensorImpl() override;

  Ref<Storage> storage;
  DType dtype;
  Shape shape;
  Strides strides;                               // in elements
  int64_t offset;                                // in elements
  std::atomic<AutogradMeta*> autograd{nullptr};  // owned; set once
};

class Tensor {
 public:
  Tensor() = default;  // undefined
  explicit Tensor(Ref<TensorImpl> impl) : impl_(std::move(impl)) {}

  // Uninitialised memory. `strides` describe a layout without gaps (default: row-major).
  static Tensor empty(const Shape& shape, DType dtype, Device device, const char* tag);
  static Tensor empty_strided(const Shape& shape, const Strides& strides, DType dtype, Device device, const char* tag);
  // Another view of the same storage.
  Tensor view(const Shape& shape, const Strides& strides, int64_t offset) const;

  bool defined() const { return static_cast<bool>(impl_); }
  explicit operator bool() const { return defined(); }
  TensorImpl* impl() const { return impl_.get(); }
  const Ref<TensorImpl>& ref() const { return impl_; }
  bool same(const Tensor& other) const { return impl_ == other.impl_; }

  DType dtype() const { return impl_->dtype; }
  Device device() const { return impl_->storage->device(); }
  const Shape& shape() const { return impl_->shape; }
  const Strides& strides() const { return impl_->strides; }
  int64_t offset() const { return impl_->offset; }
  int rank() const { return impl_->shape.size(); }
  int64_t size(int axis) const { return impl_->shape[axis < 0 ? axis + rank() : axis]; }
  int64_t numel() const { return num_elements(impl_->shape); }
  size_t nbytes() const { return static_cast<size_t>(numel()) * dtype_size(dtype()); }
  bool contiguous() const { return is_contiguous(impl_->shape, impl_->strides); }
  Storage& storage() const { return *impl_->storage; }
  void* data() const {
    return static_cast<char*>(impl_->storage->data()) + impl_->offset * static_cast<int64_t>(dtype_size(impl_->dtype));
  }
  View as_view() const;

 private:
  Ref<TensorImpl> impl_;
};

using Tensors = std::vector<Tensor>;

// float32[2, 3] on cpu
std::string describe(const Tensor& tensor);

}  // namespace blutensor
