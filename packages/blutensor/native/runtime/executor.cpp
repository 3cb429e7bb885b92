#include "runtime/executor.h"

#include <algorithm>
#include <utility>

#include "autograd/node.h"
#include "ops/dispatch.h"
#include "tensor/device.h"

namespace blutensor {

BoundProgram::BoundProgram(Ref<Program> program) : program_(std::move(program)) {}

void BoundProgram::bind(void* arena) {
  bound_ = true;
  calls_.clear();
  views_.clear();
  slot_addresses_.clear();
  const Program& p = *program_;
  const auto address = [&](int32_t b) -> char* {
    const Buffer& buffer = p.buffers[static_cast<size_t>(b)];
    return static_cast<char*>(buffer.storage ? buffer.storage->data() : arena) +
           (buffer.storage ? 0 : buffer.arena_offset);
  };
  for (const ProgramCall& call : p.calls) {
    BoundCall bound{call.op,
                    p.device,
                    views_.size(),
                    call.inputs.size(),
                    call.outputs.size(),
                    call.list_length,
                    &call.attrs,
                    call.workspace_buffer < 0 ? nullptr : address(call.workspace_buffer),
                    call.workspace_bytes};
    for (const std::vector<Operand>* operands : {&call.inputs, &call.outputs})
      for (const Operand& o : *operands) {
        View& view = views_.emplace_back();
        if (o.buffer < 0) continue;
        view.dtype = o.dtype;
        view.shape = o.shape;
        view.strides = o.strides;
        view.data = address(o.buffer) + o.offset * static_cast<int64_t>(dtype_size(o.dtype));
        view.defined_ = true;
      }
    calls_.push_back(bound);
  }
  for (const Tensor& t : p.slot_tensors) slot_addresses_.push_back(t.data());
#ifdef BLUTENSOR_HAVE_CUDA
  record_graph();
#endif
}

void BoundProgram::unbind() {
  bound_ = false;
#ifdef BLUTENSOR_HAVE_CUDA
  graph_.reset();
#endif
}

#ifdef BLUTENSOR_HAVE_CUDA
Staging& BoundProgram::staging() {
  use_device(program_->device);
  if (!staging_) staging_ = std::make_unique<Staging>(*program_);
  return *staging_;
}

void BoundProgram::record_graph() {
  graph_.reset();
  no_graph_.clear();
  const Program& p = *program_;
  if (p.device.type != DeviceType::cuda) return;
  use_device(p.device);
  if (!lanes_ && Lanes::needed(p)) lanes_ = std::make_unique<Lanes>(p);
  try {
    graph_ = std::make_unique<Graph>(p.device, [&] { enqueue(); });
  } catch (const Error& e) {
    if (e.status() == Status::device_lost || e.status() == Status::out_of_memory) throw;
    no_graph_ = e.what();
  }
}
#endif

std::string BoundProgram::execution() const {
#ifdef BLUTENSOR_HAVE_CUDA
  if (graph_) return text("one graph of ", graph_->num_nodes(), " nodes");
  if (program_->device.type == DeviceType::cuda)
    return text("launches one by one: ", no_graph_.empty() ? "not bound to an arena" : no_graph_);
#endif
  return "native loop";
}

Launch BoundProgram::launch_of(const BoundCall& call, const std::vector<View>& views, void* workspace,
                               void* stream) const {
  return {std::span(views).subspan(call.first_view, call.num_inputs),
          std::span(views).subspan(call.first_view + call.num_inputs, call.num_outputs),
          *call.attrs,
          call.list_length,
          workspace,
          call.workspace_bytes,
          stream,
          call.device,
          program_->math};
}

// A recording baked in which gradient buffers it overwrites and which it adds to.
void BoundProgram::before_run() const {
  if (!bound_) fail(Status::runtime, "[", program_->name(), "] the arena of this program could not be allocated");
  for (const GradFlag& flag : program_->grad_flags) {
    const GradMeta& meta = ensure_grad_meta(flag.leaf);
    if (!meta.grad.defined() || meta.grad.storage().id() != flag.storage_id)
      fail(Status::capture, "[", program_->name(), "] the gradient buffer of a parameter (", describe(flag.leaf),
           ") was dropped or replaced after the capture; keep it: zero_grad(set_to_none=False)");
    if (meta.grad_stale != flag.stale_before)
      fail(Status::capture, "[", program_->name(), "] this program was recorded to ",
           flag.stale_before ? "overwrite" : "add to or keep", " the gradient of a parameter (", describe(flag.leaf),
           "), which is now ", flag.stale_before ? "not " : "",
           "marked stale; call zero_grad() and backward() in the same order as while it was recorded");
  }
}

void BoundProgram::after_run() const {
  for (const Ref<Storage>& storage : program_->written) storage->mark_written("replay of a captured function");
  for (const GradFlag& flag : program_->grad_flags) ensure_grad_meta(flag.leaf).grad_stale = flag.stale_after;
}

void BoundProgram::enqueue() const {
#ifdef BLUTENSOR_HAVE_CUDA
  if (lanes_) {
    lanes_->begin();
    for (size_t c = 0; c < calls_.size(); ++c) {
      void* stream = lanes_->before(c);
      launch(*calls_[c].op, calls_[c].device, launch_of(calls_[c], views_, calls_[c].workspace, stream));
      lanes_->after(c);
    }
    lanes_->end();
    return;
  }
#endif
  void* stream = compute_stream(program_->device);
  for (const BoundCall& call : calls_) launch(*call.op, call.device, launch_of(call, views_, call.workspace, stream));
}

void BoundProgram::run() const {
  before_run();
#ifdef BLUTENSOR_HAVE_CUDA
  if (graph_ && !has_op_hooks()) {
    use_device(program_->device);
    graph_->launch();
    return after_run();
  }
#endif
  enqueue();
  after_run();
}

void BoundProgram::run_operator_by_operator(const std::function<void(int64_t, const char*)>& before_op) const {
  const Program& p = *program_;
  before_run();
  std::vector<Ref<Storage>> live(p.buffers.size());
  std::vector<View> views = views_;
  for (size_t c = 0; c < calls_.size(); ++c) {
    const ProgramCall& call = p.calls[c];
    const BoundCall& bound = calls_[c];
    if (before_op) before_op(static_cast<int64_t>(c), call.op->tag);
    size_t v = bound.first_view;
    const auto storage_of = [&](int32_t b) -> void* {
      const Buffer& buffer = p.buffers[static_cast<size_t>(b)];
      if (buffer.storage) return buffer.storage->data();
      Ref<Storage>& storage = live[static_cast<size_t>(b)];
      if (!storage) storage = make_ref<Storage>(buffer.bytes, bound.device, call.op->tag);
      return storage->data();
    };
    for (const std::vector<Operand>* operands : {&call.inputs, &call.outputs})
      for (const Operand& o : *operands) {
        View& view = views[v++];
        if (o.buffer >= 0)
          view.data = static_cast<char*>(storage_of(o.buffer)) + o.offset * static_cast<int64_t>(dtype_size(o.dtype));
      }
    void* workspace = call.workspace_buffer < 0 ? nullptr : storage_of(call.workspace_buffer);
    launch(*call.op, bound.device, launch_of(bound, views, workspace, compute_stream(bound.device)));
    for (const std::vector<Operand>* operands : {&call.inputs, &call.outputs})
      for (const Operand& o : *operands)
        if (o.buffer >= 0 && p.buffers[static_cast<size_t>(o.buffer)].last_call == static_cast<int64_t>(c))
          live[static_cast<size_t>(o.buffer)] = {};
    if (call.workspace_buffer >= 0) live[static_cast<size_t>(call.workspace_buffer)] = {};
  }
  after_run();
}

void Family::add(const Ref<BoundProgram>& program) {
  const std::lock_guard lock(lock_);
  const Device device = program->program().device;
  if (!programs_.empty() && !(device == device_))
    fail(Status::invalid_value, "[", program->program().name(), "] this program runs on ", device_name(device),
         ", and family '", name_, "' has its arena on ", device_name(device_), "; use a family for each device");
  device_ = device;
  if (program->family)
    fail(Status::invalid_value, "[", program->program().name(), "] this program is finalized already");
  const uint64_t before = std::exchange(needed_bytes_, std::max(needed_bytes_, program->program().arena_bytes()));
  try {
    ensure_arena();
  } catch (...) {
    needed_bytes_ = before;  // the others still work
    throw;
  }
  program->bind(arena_->data());
  program->family = this;
  programs_.push_back(program.get());
  // An arena that was large enough already leaves what this recording took; on a device nobody else can use that.
  if (device.type == DeviceType::cuda) trim_pool(device);
}

void Family::give_back_arena() {
  const std::lock_guard lock(lock_);
  drop_arena();
}

void Family::drop_arena() {
  arena_ = {};
  for (BoundProgram* program : programs_) program->unbind();
}

void Family::ensure_arena() {
  if (arena_ && arena_->device() == device_ && arena_->bytes() >= needed_bytes_) return;
  drop_arena();        // first: the two need not exist together
  trim_pool(device_);  // what recording took, operator by operator, goes back before the arena is there too
  arena_ = make_ref<Storage>(static_cast<size_t>(needed_bytes_), device_, intern("arena " + name_));
  for (BoundProgram* program : programs_) program->bind(arena_->data());
}

void Family::remove(const BoundProgram* program) {
  if (lock_.left_behind()) return;  // nobody will run this family again
  const std::lock_guard lock(lock_);
  std::erase(programs_, program);
}

uint64_t Family::peak_live_bytes() const {
  uint64_t peak = 0;
  for (const BoundProgram* p : programs_) peak = std::max(peak, p->program().peak_live_bytes());
  return peak;
}

}  // namespace blutensor
