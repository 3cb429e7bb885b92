#include "runtime/run_loop.h"

#include <chrono>

namespace blutensor {

namespace {

using Clock = std::chrono::steady_clock;
double seconds(Clock::duration d) { return std::chrono::duration<double>(d).count(); }

}  // namespace

void write_element(DType dtype, void* to, double value) {
  visit_dtype(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_arithmetic_v<T>) {
      *static_cast<T*>(to) = static_cast<T>(value);
    } else {
      *static_cast<T*>(to) = T(static_cast<float>(value));
    }
  });
}

double read_element(DType dtype, const void* from) {
  return visit_dtype(dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    if constexpr (std::is_arithmetic_v<T>) {
      return static_cast<double>(*static_cast<const T*>(from));
    } else {
      return static_cast<double>(static_cast<float>(*static_cast<const T*>(from)));
    }
  });
}

void RunLoop::run(Family& family) {
  for (const Phase& phase : phases)
    require(phase.program->family == &family, "[run] program '", phase.program->program().name(),
            "' is not part of family '", family.name(), "'");
  for (const Tensor& t : feeds) require(t.numel() == 1, "[run] expected feeds of one element, got ", describe(t));
  for (const Tensor& t : metrics) require(t.numel() == 1, "[run] expected metrics of one element, got ", describe(t));
  for (const Tensors* list : {&feeds, &metrics})
    for (const Tensor& t : *list)
      require_type(t.device() == family.device(), "[run] expected feeds and metrics on ", device_name(family.device()),
                   ", where the programs run, got ", describe(t));

  const std::lock_guard lock(family.lock());
  family.ensure_arena();
  steps_done = 0;
#ifdef BLUTENSOR_HAVE_CUDA
  if (family.device().type == DeviceType::cuda) return run_on_device(family.device());
#endif
  run_on_host();
}

void RunLoop::run_on_host() {
  const auto begin = Clock::now();
  auto asked = begin;
  double busy = 0;
  for (int64_t step = 0; step < steps; ++step) {
    for (size_t i = 0; i < feeds.size(); ++i) {
      write_element(feeds[i].dtype(), feeds[i].data(), feed_values[static_cast<size_t>(step) * feeds.size() + i]);
      feeds[i].storage().mark_written("run feed");
    }
    for (const Phase& phase : phases) {
      const std::vector<void*>& slots = phase.program->slot_addresses();
      for (int64_t k = 0; k < phase.repeats; ++k) {
        const auto start = Clock::now();
        if (source) source(slots.data(), static_cast<int32_t>(slots.size()));
        phase.program->run();
        busy += seconds(Clock::now() - start);
      }
    }
    for (size_t i = 0; i < metrics.size(); ++i)
      metric_values[static_cast<size_t>(step) * metrics.size() + i] =
          read_element(metrics[i].dtype(), metrics[i].data());
    ++steps_done;
    const auto now = Clock::now();
    host_seconds = seconds(now - begin) - busy;
    if (slice_seconds > 0 && seconds(now - begin) >= slice_seconds) return;
    if (interrupted && (steps_done == steps || now - asked >= std::chrono::milliseconds(50))) {
      asked = now;
      if (interrupted()) fail(Status::interrupted, "[run] interrupted after ", steps_done, " of ", steps, " steps");
    }
  }
}

}  // namespace blutensor
