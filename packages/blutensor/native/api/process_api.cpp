// Errors, versions, hooks, instruction sets.
#include <mutex>

#include "api/handles.h"
#include "autograd/node.h"
#include "ops/cuda/report.h"
#include "ops/dispatch.h"
#include "ops/kernels.h"
#include "ops/registry.h"
#include "tensor/device.h"

namespace blutensor::api {

namespace {
std::string& error_text() {
  thread_local std::string message;
  return message;
}
}  // namespace

void set_last_error(const std::string& message) { error_text() = message; }

void initialize() {
  static std::once_flag once;
  std::call_once(once, [] {
    OperatorRegistry::instance();
    install_autograd();
#ifdef BLUTENSOR_HAVE_CUDA
    set_report_check(cuda::throw_reported);
#endif
  });
}

DType checked_dtype(int32_t dtype) {
  require_type(dtype >= 0 && dtype < kNumDTypes, "expected a dtype number from 0 to ", kNumDTypes - 1, ", got ", dtype);
  return static_cast<DType>(dtype);
}

Device checked_device(int32_t type, int32_t index) {
  require_type(type == 0 || type == 1, "expected device type 0 (cpu) or 1 (cuda), got ", type);
  require(type == 1 || index == 0, "expected device index 0 of the cpu, got ", index);
  const Device device{static_cast<DeviceType>(type), index};
  check_device(device);
  return device;
}

Attrs to_attrs(const blutensor_attr* attrs, int32_t count) {
  std::vector<Attr> values(static_cast<size_t>(count));
  for (size_t k = 0; k < values.size(); ++k) {
    const blutensor_attr& from = attrs[k];
    Attr& to = values[k];
    to.kind = static_cast<AttrKind>(from.kind);
    switch (to.kind) {
      case AttrKind::floating:
        to.f = from.f;
        break;
      case AttrKind::integers:
        to.ints = dims(from.ints, from.count);
        break;
      case AttrKind::axes:
        to.i = from.i != 0;
        if (!to.all_axes()) to.ints = dims(from.ints, from.count);
        break;
      case AttrKind::floats:
        require(from.count >= 0, "expected at least 0 floats, got ", from.count);
        to.floats.assign(from.floats, from.floats + from.count);
        break;
      case AttrKind::string:
        to.s = from.s ? from.s : "";
        break;
      case AttrKind::boolean:
        to.i = from.i != 0;
        break;
      case AttrKind::dtype:
        to.i = static_cast<int64_t>(checked_dtype(static_cast<int32_t>(from.i)));
        break;
      default:
        to.i = from.i;
    }
  }
  return Attrs(std::move(values));
}

std::vector<blutensor_attr> from_attrs(const Attrs& attrs) {
  std::vector<blutensor_attr> list(attrs.size());
  for (size_t k = 0; k < list.size(); ++k) {
    const Attr& a = attrs[k];
    list[k] = {static_cast<int32_t>(a.kind), a.ints.size(), a.i, a.f, {a.ints.data()}, a.s.c_str()};
    if (a.kind == AttrKind::floats) {
      list[k].count = static_cast<int32_t>(a.floats.size());
      list[k].floats = a.floats.data();
    }
  }
  return list;
}

blutensor_view to_c_view(const View& view) {
  blutensor_view v{};
  v.data = view.data;
  v.dtype = static_cast<int32_t>(view.dtype);
  v.rank = view.defined() ? view.rank() : -1;
  std::copy(view.shape.begin(), view.shape.end(), v.shape);
  std::copy(view.strides.begin(), view.strides.end(), v.strides);
  return v;
}

}  // namespace blutensor::api

using namespace blutensor;
using namespace blutensor::api;

extern "C" {

const char* blutensor_last_error(void) { return error_text().c_str(); }
void blutensor_set_error(const char* message) { set_last_error(message ? message : ""); }
uint32_t blutensor_abi_version(void) { return (BLUTENSOR_ABI_MAJOR << 16) | BLUTENSOR_ABI_MINOR; }

int32_t blutensor_set_float32_math(const char* name) {
  return guarded([&] {
    const std::string mode = name ? name : "";
    if (mode == "ieee") {
      set_float32_math(Float32Math::ieee);
    } else if (mode == "tf32") {
      set_float32_math(Float32Math::tf32);
    } else {
      fail(Status::invalid_value, "[set_float32_math] expected ieee or tf32, got '", mode, "'");
    }
  });
}

const char* blutensor_float32_math(void) { return float32_math_name(float32_math()); }

int32_t blutensor_set_isa(const char* name) {
  return guarded([&] {
    const std::string isa = name ? name : "";
    if (isa == "auto") {
      set_isa(supports_isa(Isa::avx512) ? Isa::avx512 : supports_isa(Isa::avx2) ? Isa::avx2 : Isa::reference);
    } else if (isa == "reference") {
      set_isa(Isa::reference);
    } else if (isa == "avx2") {
      set_isa(Isa::avx2);
    } else if (isa == "avx512") {
      set_isa(Isa::avx512);
    } else {
      fail(Status::invalid_value, "[set_isa] expected reference, avx2, avx512 or auto, got '", isa, "'");
    }
  });
}

const char* blutensor_isa(void) {
  constexpr const char* names[] = {"reference", "avx2", "avx512"};
  return names[static_cast<int>(active_isa())];
}

int32_t blutensor_set_hooks(const blutensor_hooks* hooks) {
  return guarded([&] {
    if (!hooks) return set_op_hooks({});
    require(hooks->struct_size >= sizeof(blutensor_hooks), "[set_hooks] struct_size is too small");
    require(hooks->op_begin && hooks->op_end, "[set_hooks] expected both callbacks");
    set_op_hooks({hooks->op_begin, hooks->op_end, hooks->context});
  });
}

}  // extern "C"
