// Captures, Programs, families and the run loop.
#include <memory>

#include "api/handles.h"
#include "autograd/node.h"
#include "program/recorder.h"
#include "runtime/generator.h"
#include "runtime/run_loop.h"

using namespace blutensor;
using namespace blutensor::api;

// A program as C sees it: recorded, and after finalizing bound to its family's arena.
struct blutensor_program {
  Ref<Program> recorded;
  Ref<BoundProgram> bound;
  Ref<Family> family;
};

namespace {

thread_local std::unique_ptr<Recorder> recorder;
thread_local RandomPosition random_begin;

Family& family_of(blutensor_family* family) {
  require_type(family != nullptr, "[family] expected a family, got NULL");
  return *reinterpret_cast<Family*>(family);
}

BoundProgram& bound(const blutensor_program* program) {
  require_type(program != nullptr, "[program] expected a program, got NULL");
  if (!program->bound)
    fail(Status::capture, "[", program->recorded->name(),
         "] the program is not finalized yet: finalize() plans its memory");
  return *program->bound;
}

}  // namespace

extern "C" {

int32_t blutensor_capture_begin(const char* name, int32_t level) {
  return guarded([&] {
    initialize();
    require(level == 0 || level == 1, "[capture] expected level 0 (operators) or 1 (primitives), got ", level);
    if (Recorder::active())
      fail(Status::capture, "[capture ", name, "] a capture is already running on this thread; captures do not nest");
    Generator::current().before_capture();
    recorder = std::make_unique<Recorder>(name, level == 1);
    random_begin = Generator::current().position();
  });
}

int32_t blutensor_capture_end(blutensor_tensor* const* slots, int32_t num_slots, blutensor_tensor* const* outputs,
                              int32_t num_outputs, blutensor_program** out) {
  return guarded([&] {
    if (!recorder) fail(Status::capture, "[capture] no capture is running on this thread");
    const std::unique_ptr<Recorder> ending = std::move(recorder);
    // Outputs of a replay belong to no graph.
    Tensors results;
    for (const Tensor& t : from_handles(outputs, num_outputs))
      results.push_back(t.view(t.shape(), t.strides(), t.offset()));
    auto program = std::make_unique<blutensor_program>();
    program->recorded = ending->finish(from_handles(slots, num_slots), results);
    program->recorded->random_begin = random_begin;
    program->recorded->random_end = Generator::current().position();
    *out = program.release();
  });
}

void blutensor_capture_abort(void) { recorder.reset(); }
int32_t blutensor_capture_active(void) { return Recorder::active() != nullptr; }

int32_t blutensor_program_compare(const blutensor_program* first, const blutensor_program* second) {
  return guarded([&] { first->recorded->check_same(*second->recorded); });
}

int32_t blutensor_program_finalize(blutensor_program* program, blutensor_family* family) {
  return guarded([&] {
    if (program->bound) fail(Status::capture, "[", program->recorded->name(), "] the program is finalized already");
    program->recorded->plan();
    auto bound_program = make_ref<BoundProgram>(program->recorded);
    Ref<Family> owner = family ? Ref<Family>(&family_of(family)) : make_ref<Family>(program->recorded->name());
    owner->add(bound_program);
    program->recorded->mark_left_behind();
    program->bound = std::move(bound_program);
    program->family = std::move(owner);
  });
}

void blutensor_program_release(blutensor_program* program) {
  if (!program) return;
  if (program->family) program->family->remove(program->bound.get());
  delete program;
}

int32_t blutensor_program_replay(blutensor_program* program, int32_t level,
                                 int32_t (*on_op)(void* context, int64_t index, const char* name), void* context) {
  return guarded([&] {
    BoundProgram& p = bound(program);
    if (Recorder::active()) fail(Status::capture, "[replay] cannot run a captured program inside a capture");
    const std::lock_guard lock(program->family->lock());
    program->family->ensure_arena();
    Generator::current().before_run(p.program());
    if (level == 0) {
      p.run();
      return Generator::current().after_run(p.program());
    }
    require(level == 1, "[replay] expected level 0 (native) or 1 (operator by operator), got ", level);
    p.run_operator_by_operator([&](int64_t index, const char* name) {
      if (!on_op) return;
      if (const int32_t status = on_op(context, index, name))
        throw Error(static_cast<Status>(status), blutensor_last_error());
    });
    Generator::current().after_run(p.program());
  });
}

const char* blutensor_program_execution(const blutensor_program* program) {
  thread_local std::string buffer;
  const int32_t status = guarded([&] { buffer = bound(program).execution(); });
  return status ? "" : buffer.c_str();
}

const char* blutensor_program_text(const blutensor_program* program) {
  thread_local std::string buffer;
  const int32_t status = guarded([&] { buffer = program->recorded->to_text(); });
  return status ? "" : buffer.c_str();
}

int32_t blutensor_program_get_info(const blutensor_program* program, blutensor_program_info* info) {
  return guarded([&] {
    require(info->struct_size >= sizeof(blutensor_program_info), "[program_info] struct_size is too small");
    const Program& p = *program->recorded;
    info->num_calls = static_cast<int64_t>(p.calls.size());
    info->num_buffers = static_cast<int64_t>(p.buffers.size());
    info->num_slots = static_cast<int64_t>(p.slot_tensors.size());
    info->num_outputs = static_cast<int64_t>(p.output_tensors.size());
    info->arena_bytes = p.arena_bytes();
    info->peak_live_bytes = p.peak_live_bytes();
    info->external_bytes = p.bytes_of(BufferKind::external);
    info->output_bytes = p.bytes_of(BufferKind::output);
    info->workspace_peak_bytes = p.workspace_peak_bytes();
    info->device_type = static_cast<int32_t>(p.device.type);
    info->device_index = p.device.index;
  });
}

int32_t blutensor_family_create(const char* name, blutensor_family** out) {
  return guarded([&] { *out = reinterpret_cast<blutensor_family*>(make_ref<Family>(name).detach()); });
}
void blutensor_family_release(blutensor_family* family) {
  if (family) family_of(family).release();
}

int32_t blutensor_family_get_info(const blutensor_family* family, blutensor_family_info* info) {
  return guarded([&] {
    require(info->struct_size >= sizeof(blutensor_family_info), "[family_info] struct_size is too small");
    Family& f = family_of(const_cast<blutensor_family*>(family));
    info->num_programs = static_cast<uint32_t>(f.num_programs());
    info->arena_bytes = f.arena_bytes();
    info->peak_live_bytes = f.peak_live_bytes();
  });
}

int32_t blutensor_family_give_back_arena(blutensor_family* family) {
  return guarded([&] { family_of(family).give_back_arena(); });
}

int32_t blutensor_family_run(blutensor_family* family, blutensor_run_args* args) {
  RunLoop loop;
  const int32_t status = guarded([&] {
    require(args->struct_size >= sizeof(blutensor_run_args), "[run] struct_size is too small");
    require(args->steps >= 0, "[run] expected at least 0 steps, got ", args->steps);
    if (Recorder::active()) fail(Status::capture, "[run] cannot run captured programs inside a capture");
    for (int32_t i = 0; i < args->num_phases; ++i) {
      require(args->repeats[i] >= 0, "[run] expected repeats of at least 0, got ", args->repeats[i]);
      loop.phases.push_back({&bound(args->programs[i]), args->repeats[i]});
    }
    loop.steps = args->steps;
    loop.slice_seconds = args->slice_seconds;
    loop.prefetch = args->synchronous == 0;
    if (args->source_next)
      loop.source = [args](void* const* slots, int32_t n) {
        if (const int32_t code = args->source_next(args->source_context, slots, n))
          fail(static_cast<Status>(code), "[run] the source of batches failed with status ", code);
      };
    loop.feeds = from_handles(args->feeds, args->num_feeds);
    loop.feed_values = args->feed_values;
    loop.metrics = from_handles(args->metrics, args->num_metrics);
    loop.metric_values = args->metric_values;
    if (args->interrupted) loop.interrupted = [args] { return args->interrupted(args->interrupted_context) != 0; };
    for (const Phase& phase : loop.phases) Generator::current().before_run(phase.program->program());
    loop.run(family_of(family));
    if (!loop.phases.empty() && loop.steps_done > 0)
      Generator::current().after_run(loop.phases.back().program->program());
  });
  args->steps_done = loop.steps_done;
  args->host_seconds = loop.host_seconds;
  return status;
}

}  // extern "C"
