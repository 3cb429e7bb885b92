// Shapes and strides: short vectors of 64-bit integers without heap memory.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <ostream>
#include <span>

#include "tensor/error.h"

namespace blutensor {

inline constexpr int kMaxRank = 8;

// At most kMaxRank integers. Used for shapes (elements per axis), strides (in elements) and axis lists.
class Dims {
 public:
  Dims() = default;
  Dims(std::initializer_list<int64_t> values) : Dims(std::span<const int64_t>(values.begin(), values.size())) {}
  explicit Dims(std::span<const int64_t> values) {
    require(values.size() <= kMaxRank, "expected at most ", kMaxRank, " axes, got ", values.size());
    size_ = static_cast<int>(values.size());
    std::copy(values.begin(), values.end(), values_.begin());
  }
  static Dims filled(int size, int64_t value) {
    Dims d;
    d.resize(size, value);
    return d;
  }

  int size() const { return size_; }
  bool empty() const { return size_ == 0; }
  int64_t operator[](int i) const { return values_[static_cast<size_t>(i)]; }
  int64_t& operator[](int i) { return values_[static_cast<size_t>(i)]; }
  int64_t back() const { return values_[static_cast<size_t>(size_ - 1)]; }
  int64_t& back() { return values_[static_cast<size_t>(size_ - 1)]; }
  const int64_t* data() const { return values_.data(); }
  const int64_t* begin() const { return values_.data(); }
  const int64_t* end() const { return values_.data() + size_; }
  void push_back(int64_t value) {
    require(size_ < kMaxRank, "expected at most ", kMaxRank, " axes");
    values_[static_cast<size_t>(size_++)] = value;
  }
  void resize(int size, int64_t value = 0) {
    require(size <= kMaxRank, "expected at most ", kMaxRank, " axes, got ", size);
    for (int i = size_; i < size; ++i) values_[static_cast<size_t>(i)] = value;
    size_ = size;
  }
  void insert(int at, int64_t value) {
    push_back(0);
    for (int i = size_ - 1; i > at; --i) (*this)[i] = (*this)[i - 1];
    (*this)[at] = value;
  }
  void erase(int at) {
    for (int i = at; i + 1 < size_; ++i) (*this)[i] = (*this)[i + 1];
    --size_;
  }
  bool operator==(const Dims& other) const { return size_ == other.size_ && std::equal(begin(), end(), other.begin()); }

 private:
  std::array<int64_t, kMaxRank> values_{};
  int size_ = 0;
};

using Shape = Dims;
using Strides = Dims;

std::ostream& operator<<(std::ostream& out, const Dims& dims);  // (2, 3)

// Number of elements; throws when it does not fit 63 bits.
int64_t num_elements(const Shape& shape);
Strides contiguous_strides(const Shape& shape);
bool is_contiguous(const Shape& shape, const Strides& strides);
// NumPy broadcasting; `op` names the operator in the error.
Shape broadcast_shapes(const Shape& a, const Shape& b, const char* op);
// Strides of a tensor of `shape` read as if it had shape `to` (0 along broadcast axes).
Strides broadcast_strides(const Shape& shape, const Strides& strides, const Shape& to);
// Axis in [-rank, rank) to [0, rank).
int normalize_axis(int64_t axis, int rank, const char* op);

}  // namespace blutensor
