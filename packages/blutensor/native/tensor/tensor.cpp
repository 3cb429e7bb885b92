#include "tensor/tensor.h"

#include "tensor/autograd_meta.h"

namespace blutensor {

TensorImpl::TensorImpl(Ref<Storage> s, DType d, Shape sh, Strides st, int64_t off)
    : storage(std::move(s)), dtype(d), shape(sh), strides(st), offset(off) {}

TensorImpl::~TensorImpl() { delete autograd.load(std::memory_order_acquire); }

Tensor Tensor::empty(const Shape& shape, DType dtype, Device device, const char* tag) {
  return empty_strided(shape, contiguous_strides(shape), dtype, device, tag);
}

Tensor Tensor::empty_strided(const Shape& shape, const Strides& strides, DType dtype, Device device, const char* tag) {
  int64_t bytes = 0;
  require(!__builtin_mul_overflow(num_elements(shape), static_cast<int64_t>(dtype_size(dtype)), &bytes), "[", tag,
          "] shape ", shape, " needs more than 2^63 bytes");
  auto storage = make_ref<Storage>(static_cast<size_t>(bytes), device, tag);
  return Tensor(make_ref<TensorImpl>(std::move(storage), dtype, shape, strides, int64_t{0}));
}

Tensor Tensor::view(const Shape& shape, const Strides& strides, int64_t offset) const {
  return Tensor(make_ref<TensorImpl>(impl_->storage, impl_->dtype, shape, strides, offset));
}

View Tensor::as_view() const {
  View v;
  v.data = data();
  v.dtype = dtype();
  v.shape = shape();
  v.strides = strides();
  v.defined_ = true;
  return v;
}

std::string describe(const Tensor& tensor) {
  if (!tensor.defined()) return "no tensor";
  return text(dtype_name(tensor.dtype()), tensor.shape(), " on ", device_name(tensor.device()));
}

}  // namespace blutensor
