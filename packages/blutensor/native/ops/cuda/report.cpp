#include "ops/cuda/report.h"

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <mutex>

#include "ops/cuda/launch.h"

namespace blutensor::cuda {

namespace {

constexpr size_t kMaxDevices = 64;

struct Slot {
  std::atomic<volatile Report*> host{nullptr};
  Report* device = nullptr;  // set before host
};

std::array<Slot, kMaxDevices>& slots() {
  static std::array<Slot, kMaxDevices> all;
  return all;
}

[[noreturn]] void throw_report(const Report& report, size_t device) {
  const auto limit = static_cast<int64_t>(report.limit);
  const char* advice =
      "this was found on the device, by an earlier call than the one that waited for it; its results are not usable";
  switch (report.code) {
    case ReportCode::embedding_id:
      fail(Status::index, "[embedding] expected ids from 0 to ", limit - 1, ", got ", report.value, " on cuda:", device,
           ": check the tokens, or give the embedding more rows (", advice, ")");
    case ReportCode::cross_entropy_target:
      fail(Status::index, "[cross_entropy] expected targets from 0 to ", limit - 1, " or ignore_index, got ",
           report.value, " on cuda:", device, ": check the targets, or set ignore_index=", report.value, " (", advice,
           ")");
    case ReportCode::linear_cross_entropy_target:
      fail(Status::index, "[linear_cross_entropy] expected targets from 0 to ", limit - 1, " or ignore_index, got ",
           report.value, " on cuda:", device, ": check the targets, or set ignore_index=", report.value, " (", advice,
           ")");
    case ReportCode::index_write_position:
      fail(Status::index, "[index_write_] expected a position from 0 to ", limit - 1, ", got ", report.value,
           " on cuda:", device, ": the cache is full (", advice, ")");
    case ReportCode::index:
      fail(Status::index, "[index] expected an index from ", -limit, " to ", limit - 1, ", got ", report.value,
           " on cuda:", device, " (", advice, ")");
    case ReportCode::attention_decode_position:
      fail(Status::index, "[attention_decode] expected a position from 0 to ", limit - 1, ", a row of the cache, got ",
           report.value, " on cuda:", device, ": generate fewer tokens, or make the cache longer (", advice, ")");
    case ReportCode::none:
      break;
  }
  fail(Status::runtime, "[cuda] unknown report ", static_cast<uint32_t>(report.code), " on cuda:", device);
}

}  // namespace

Report* report_slot() {
  static std::mutex mutex;
  int device = 0;
  check(cudaGetDevice(&device), "report_slot");
  require(static_cast<size_t>(device) < kMaxDevices, "[cuda] expected a device below ", kMaxDevices, ", got ", device);
  Slot& slot = slots()[static_cast<size_t>(device)];
  if (slot.host.load(std::memory_order_acquire)) return slot.device;
  const std::scoped_lock lock(mutex);
  if (slot.host.load(std::memory_order_relaxed)) return slot.device;
  const RelaxedCapture relaxed;
  void *host = nullptr, *mapped = nullptr;
  check(cudaHostAlloc(&host, sizeof(Report), cudaHostAllocMapped | cudaHostAllocPortable), "report_slot");
  check(cudaHostGetDevicePointer(&mapped, host, 0), "report_slot");
  slot.device = static_cast<Report*>(mapped);
  slot.host.store(new (host) Report{}, std::memory_order_release);
  return slot.device;
}

bool reported() {
  for (const Slot& slot : slots())
    if (const volatile Report* report = slot.host.load(std::memory_order_acquire))
      if (report->code != ReportCode::none) return true;
  return false;
}

void throw_reported() {
  for (size_t device = 0; device < kMaxDevices; ++device) {
    volatile Report* slot = slots()[device].host.load(std::memory_order_acquire);
    if (!slot || slot->code == ReportCode::none) continue;
    Report found;
    found.value = slot->value;
    found.limit = slot->limit;
    found.code = slot->code;
    slot->code = ReportCode::none;
    throw_report(found, device);
  }
}

}  // namespace blutensor::cuda
