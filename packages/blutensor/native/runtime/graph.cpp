#include "runtime/graph.h"

namespace blutensor {

namespace {

void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess) cuda_failed(error, what);
}

cudaStream_t stream_of(void* stream) { return static_cast<cudaStream_t>(stream); }

[[noreturn]] void cannot_record(cudaError_t error) {
  static_cast<void>(cudaGetLastError());
  fail(Status::capture, "CUDA cannot record it: ", cudaGetErrorName(error), ": ", cudaGetErrorString(error));
}

}  // namespace

Event::Event() { check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "event"); }
Event::~Event() { static_cast<void>(cudaEventDestroy(event_)); }
void Event::record(void* stream) { check(cudaEventRecord(event_, stream_of(stream)), "event"); }
void Event::hold(void* stream) const { check(cudaStreamWaitEvent(stream_of(stream), event_, 0), "event"); }
void Event::wait() const { check(cudaEventSynchronize(event_), "event"); }

bool Lanes::needed(const Program& program) {
  for (const ProgramCall& call : program.calls)
    if (call.op->lane != Lane::compute) return true;
  return false;
}

Lanes::Lanes(const Program& program) : program_(program) {
  for (const ProgramCall& call : program.calls) {
    void*& stream = streams_[static_cast<size_t>(call.op->lane)];
    if (stream) continue;
    cudaStream_t made = nullptr;
    check(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), "lanes");
    stream = made;
  }
  for (const LaneEvent& e : program.events)
    waits_[static_cast<size_t>(e.to)].push_back(&marks_[static_cast<size_t>(e.from)]);
}

Lanes::~Lanes() {
  for (size_t lane = 1; lane < streams_.size(); ++lane) {
    if (!streams_[lane]) continue;
    static_cast<void>(cudaStreamSynchronize(stream_of(streams_[lane])));
    static_cast<void>(cudaStreamDestroy(stream_of(streams_[lane])));
  }
}

void Lanes::begin() {
  streams_[0] = compute_stream(program_.device);
  begun_.record(streams_[0]);
  for (size_t lane = 1; lane < streams_.size(); ++lane)
    if (streams_[lane]) begun_.hold(streams_[lane]);
}

void* Lanes::before(size_t call) {
  void* stream = streams_[static_cast<size_t>(program_.calls[call].op->lane)];
  if (const auto it = waits_.find(call); it != waits_.end())
    for (const Event* event : it->second) event->hold(stream);
  return stream;
}

void Lanes::after(size_t call) {
  if (const auto it = marks_.find(call); it != marks_.end())
    it->second.record(streams_[static_cast<size_t>(program_.calls[call].op->lane)]);
}

void Lanes::end() {
  for (size_t lane = 1; lane < streams_.size(); ++lane) {
    if (!streams_[lane]) continue;
    ended_[lane].record(streams_[lane]);
    ended_[lane].hold(streams_[0]);
  }
}

namespace {

// The nodes of what `enqueue` puts on the device's compute stream.
cudaGraph_t recorded_graph(Device device, const std::function<void()>& enqueue) {
  const RecordedStream recorded(device);
  const cudaStream_t stream = stream_of(recorded.stream());
  // Thread-local: other threads may allocate meanwhile.
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "graph");
  cudaGraph_t graph = nullptr;
  try {
    enqueue();
  } catch (...) {
    static_cast<void>(cudaStreamEndCapture(stream, &graph));
    if (graph) static_cast<void>(cudaGraphDestroy(graph));
    static_cast<void>(cudaGetLastError());
    throw;
  }
  const cudaError_t error = cudaStreamEndCapture(stream, &graph);
  if (error != cudaSuccess || !graph) cannot_record(error);
  return graph;
}

}  // namespace

Graph::Graph(Device device, const std::function<void()>& enqueue) : device_(device) {
  const cudaGraph_t graph = recorded_graph(device, enqueue);
  const auto instantiate = [&]() -> cudaError_t {
    if (const cudaError_t e = cudaGraphGetNodes(graph, nullptr, &num_nodes_)) return e;
    if (const cudaError_t e = cudaGraphInstantiate(&exec_, graph, 0)) return e;
    return cudaGraphUpload(exec_, stream_of(compute_stream(device)));
  };
  const cudaError_t failed = instantiate();
  static_cast<void>(cudaGraphDestroy(graph));
  if (failed != cudaSuccess) {
    if (exec_) static_cast<void>(cudaGraphExecDestroy(exec_));
    if (failed == cudaErrorMemoryAllocation) check(failed, "graph");
    cannot_record(failed);
  }
}

Graph::~Graph() {
  drain(device_);
  static_cast<void>(cudaGraphExecDestroy(exec_));
}

void Graph::launch() const { check(cudaGraphLaunch(exec_, stream_of(compute_stream(device_))), "graph"); }

}  // namespace blutensor
