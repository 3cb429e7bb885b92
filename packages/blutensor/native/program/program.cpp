#include "program/program.h"

#include <algorithm>
#include <array>

#include <blualloc/blualloc.h>

#include "ops/dispatch.h"

namespace blutensor {

namespace {

constexpr uint64_t kHostAlignment = 64, kDeviceAlignment = 256;  // of buffers in the arena
constexpr const char* kOpId = "op_id";  // attribute of random operators: their number in the step

const char* short_dtype(DType dtype) {
  constexpr const char* names[kNumDTypes] = {"f32", "bf16", "f16", "f64", "i64", "i32", "u8",
                                             "u16", "bool", "i8",  "i16", "u32", "u64"};
  return names[static_cast<int>(dtype)];
}

std::string operand_text(const Operand& o) {
  if (o.buffer < 0) return "none";
  std::ostringstream out;
  out << '%' << o.buffer << ':' << short_dtype(o.dtype) << '[';
  for (int i = 0; i < o.shape.size(); ++i) out << (i ? "," : "") << o.shape[i];
  out << ']';
  if (!is_contiguous(o.shape, o.strides)) out << " strides " << o.strides;
  if (o.offset) out << " at " << o.offset;
  return std::move(out).str();
}

template <class List, class ToText>
void join(std::ostringstream& out, const List& list, const ToText& to_text) {
  bool first = true;
  for (const auto& item : list) {
    if (!first) out << ", ";
    out << to_text(item);
    first = false;
  }
}

void check_status(int32_t status) {
  if (status) throw Error(static_cast<Status>(status), blualloc_last_error());
}

}  // namespace

const char* buffer_kind_name(BufferKind kind) {
  constexpr const char* names[] = {"external", "slot", "internal", "workspace", "output"};
  return names[static_cast<int>(kind)];
}

std::string Program::to_text() const {
  constexpr const char* lanes[kNumLanes] = {"compute", "communication", "copy"};
  std::ostringstream out;
  out << "program " << name_ << " on " << device_name(device);
  if (device.type == DeviceType::cuda) out << ", float32 math " << float32_math_name(math);
  out << " {\n";
  for (size_t b = 0; b < buffers.size(); ++b) {
    const Buffer& buffer = buffers[b];
    out << "  buffer %" << b << " = " << buffer_kind_name(buffer.kind) << ' ' << buffer.bytes << " bytes, calls "
        << buffer.first_call << ".." << buffer.last_call;
    if (planned_ && (buffer.kind == BufferKind::internal || buffer.kind == BufferKind::workspace))
      out << ", arena " << buffer.arena_offset;
    out << '\n';
  }
  for (size_t c = 0; c < calls.size(); ++c) {
    const ProgramCall& call = calls[c];
    out << "  #" << c << ' ';
    if (!call.outputs.empty()) {
      join(out, call.outputs, operand_text);
      out << " = ";
    }
    out << call.op->name << '(';
    join(out, call.inputs, operand_text);
    out << ')';
    if (call.attrs.size()) {
      out << " {";
      for (size_t a = 0; a < call.attrs.size(); ++a)
        out << (a ? ", " : "") << call.op->attrs[a].name << '=' << blutensor::to_text(call.attrs[a]);
      out << '}';
    }
    if (call.workspace_buffer >= 0) out << " workspace %" << call.workspace_buffer;
    out << " lane " << lanes[static_cast<int>(call.op->lane)];
    for (const LaneEvent& e : events)
      if (e.to == static_cast<int64_t>(c)) out << " after #" << e.from;
    out << '\n';
  }
  out << "  return ";
  join(out, output_tensors, [&](const Tensor& t) {
    for (size_t b = 0; b < buffers.size(); ++b)
      if (buffers[b].storage_id == t.storage().id()) return text('%', b);
    return std::string("untouched");
  });
  out << "\n}\n";
  return std::move(out).str();
}

void Program::check_same(const Program& second) const {
  const auto differ = [&](size_t c, const auto&... why) {
    const ProgramCall& call = (c < calls.size() ? *this : second).calls[c];
    fail(Status::capture, "[capture ", name_, "] operator '", call.op->name, "' (call ", c, ") ", why...);
  };
  // Op ids count from the start of a step; the first recording may stand in the middle of one (after initialisers).
  const int64_t shift =
      random_begin.step == second.random_begin.step ? 0 : second.random_begin.op_id - random_begin.op_id;
  const auto same_attr = [&](const Operator& op, size_t k, const Attr& x, const Attr& y) {
    return op.attrs[k].name == kOpId ? x.i + shift == y.i : x == y;
  };
  // A scalar becomes a `full` of its own: name the operator that uses it.
  const auto consumer = [&](size_t c) -> std::string {
    if (calls[c].op->name != "full" || calls[c].outputs.empty()) return {};
    for (size_t k = c + 1; k < calls.size(); ++k)
      for (const Operand& o : calls[k].inputs)
        if (o.buffer == calls[c].outputs[0].buffer)
          return text("for an operand of '", calls[k].op->name, "' (call ", k, ") ");
    return {};
  };
  if (!(device == second.device))
    fail(Status::capture, "[capture ", name_, "] ran on ", device_name(device), " in the first recording and on ",
         device_name(second.device), " in the second");
  if (math != second.math)
    fail(Status::capture, "[capture ", name_, "] float32 products ran in mode ", float32_math_name(math),
         " in the first recording and ", float32_math_name(second.math),
         " in the second; call set_float32_math before the first");
  for (size_t c = 0; c < std::max(calls.size(), second.calls.size()); ++c) {
    if (c >= calls.size() || c >= second.calls.size())
      differ(c, "is called in one of the two recordings only (", calls.size(), " and ", second.calls.size(), " calls)");
    const ProgramCall &a = calls[c], &b = second.calls[c];
    if (a.op != b.op)
      differ(c, "became '", b.op->name,
             "' in the second recording; a captured function must make the same calls every time");
    for (size_t k = 0; k < a.attrs.size(); ++k)
      if (!same_attr(*a.op, k, a.attrs[k], b.attrs[k]))
        differ(c, a.op->attrs[k].name == kOpId ? std::string("draws other random numbers and ") : consumer(c), "has ",
               a.op->attrs[k].name, " = ", blutensor::to_text(a.attrs[k]), " in the first recording and ",
               blutensor::to_text(b.attrs[k]), " in the second: ",
               a.op->attrs[k].name == kOpId
                   ? "end every step with default_generator.advance()"
                   : "host values are baked into a capture; pass what changes as a 0-d tensor");
    if (a.inputs.size() != b.inputs.size())
      differ(c, "got ", a.inputs.size(), " and then ", b.inputs.size(), " tensors");
    for (size_t k = 0; k < a.inputs.size(); ++k) {
      const Operand &x = a.inputs[k], &y = b.inputs[k];
      if (!(x == y))
        differ(c, "reads ", operand_text(x), " in the first recording and ", operand_text(y), " in the second");
      if (x.buffer < 0) continue;
      const Buffer &p = buffers[static_cast<size_t>(x.buffer)], &q = second.buffers[static_cast<size_t>(y.buffer)];
      if (p.kind == BufferKind::external && q.kind == BufferKind::external && p.storage_id != q.storage_id)
        differ(c, "reads another tensor (input ", k, ", ", operand_text(x),
               ") in the second recording; tensors that change between calls must be arguments");
    }
    if (a.outputs != b.outputs) differ(c, "has other outputs in the second recording");
  }
}

bool Program::reads(uint64_t storage_id) const {
  return std::any_of(buffers.begin(), buffers.end(),
                     [&](const Buffer& b) { return b.storage && b.storage_id == storage_id; });
}

void Program::mark_left_behind() {
  const char* name = intern(name_);
  left_behind->for_each([&](Storage& storage) { storage.set_captured_by(name); });
}

uint64_t Program::bytes_of(BufferKind kind) const {
  uint64_t total = 0;
  for (const Buffer& b : buffers) total += b.kind == kind ? b.bytes : 0;
  return total;
}

uint64_t Program::workspace_peak_bytes() const {
  uint64_t peak = 0;
  for (const Buffer& b : buffers)
    if (b.kind == BufferKind::workspace) peak = std::max(peak, b.bytes);
  return peak;
}

// A call waits for the last call on every other lane that wrote what it touches or read what it writes.
void Program::find_events() {
  struct Last {
    std::array<int64_t, kNumLanes> write, use;
  };
  Last none;
  none.write.fill(-1);
  none.use.fill(-1);
  std::vector<Last> last(buffers.size(), none);
  events.clear();
  for (size_t c = 0; c < calls.size(); ++c) {
    const ProgramCall& call = calls[c];
    const auto lane = static_cast<size_t>(call.op->lane);
    std::array<int64_t, kNumLanes> wait;
    wait.fill(-1);
    const auto touch = [&](int32_t b, bool writes) {
      if (b < 0) return;
      Last& l = last[static_cast<size_t>(b)];
      for (size_t other = 0; other < kNumLanes; ++other)
        if (other != lane) wait[other] = std::max(wait[other], writes ? l.use[other] : l.write[other]);
      l.use[lane] = static_cast<int64_t>(c);
      if (writes) l.write[lane] = static_cast<int64_t>(c);
    };
    for (size_t i = 0; i < call.inputs.size(); ++i)
      touch(call.inputs[i].buffer,
            call.op->effect == Effect::writes && call.op->is_written(static_cast<int>(i), call.list_length));
    for (const Operand& o : call.outputs) touch(o.buffer, true);
    for (int64_t from : wait)
      if (from >= 0) events.push_back({from, static_cast<int64_t>(c)});
  }
}

void Program::plan() {
  find_events();
  std::vector<size_t> packed;
  std::vector<uint64_t> bytes, use_offsets{0};
  std::vector<blualloc_use> uses;
  std::vector<std::vector<int64_t>> calls_of(buffers.size());
  for (size_t c = 0; c < calls.size(); ++c) {
    const auto use = [&](int32_t b) {
      if (b >= 0 && (calls_of[static_cast<size_t>(b)].empty() ||
                     calls_of[static_cast<size_t>(b)].back() != static_cast<int64_t>(c)))
        calls_of[static_cast<size_t>(b)].push_back(static_cast<int64_t>(c));
    };
    for (const Operand& o : calls[c].inputs) use(o.buffer);
    for (const Operand& o : calls[c].outputs) use(o.buffer);
    use(calls[c].workspace_buffer);
  }
  for (size_t b = 0; b < buffers.size(); ++b) {
    if (buffers[b].kind != BufferKind::internal && buffers[b].kind != BufferKind::workspace) continue;
    packed.push_back(b);
    bytes.push_back(buffers[b].bytes);
    for (int64_t c : calls_of[b]) uses.push_back({static_cast<int32_t>(calls[static_cast<size_t>(c)].op->lane), 0, c});
    use_offsets.push_back(uses.size());
  }
  std::vector<blualloc_plan_event> plan_events;
  for (const LaneEvent& e : events)
    plan_events.push_back({static_cast<int32_t>(calls[static_cast<size_t>(e.from)].op->lane),
                           static_cast<int32_t>(calls[static_cast<size_t>(e.to)].op->lane), e.from, e.to});
  std::vector<uint64_t> offsets(packed.size());

  blualloc_plan_request request{};
  request.struct_size = sizeof request;
  request.num_lanes = kNumLanes;
  request.num_buffers = packed.size();
  request.bytes = bytes.data();
  request.use_offsets = use_offsets.data();
  request.uses = uses.data();
  request.num_events = plan_events.size();
  request.events = plan_events.data();
  request.alignment = device.type == DeviceType::cpu ? kHostAlignment : kDeviceAlignment;
  blualloc_plan_result result{};
  result.struct_size = sizeof result;
  result.offsets = offsets.data();
  check_status(blualloc_plan(&request, &result));
  for (size_t i = 0; i < packed.size(); ++i) buffers[packed[i]].arena_offset = offsets[i];
  arena_bytes_ = result.arena_bytes;
  peak_live_bytes_ = result.peak_live_bytes;
  planned_ = true;
}

}  // namespace blutensor
