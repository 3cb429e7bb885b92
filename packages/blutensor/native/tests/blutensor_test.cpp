// What only native code can show, and what the sanitizers should see: dispatch, autograd, capture, planner and replay without an
// interpreter, several threads at once, and objects that clean up after themselves. What operators compute is tested in Python.
#include <blutensor/blutensor.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "api/handles.h"
#include "autograd/engine.h"
#include "ops/registry.h"
#include "program/recorder.h"
#include "runtime/run_loop.h"

namespace {

using namespace blutensor;

std::atomic<int> num_failures{0};

void check(bool holds, const char* expression, int line) {
  if (!holds) {
    std::printf("line %d: expected %s; last error: %s\n", line, expression, blutensor_last_error());
    ++num_failures;
  }
}
#define CHECK(expression) check((expression), #expression, __LINE__)

// The body throws an error of this status whose message has this part.
void check_throws(Status status, const char* part, const std::function<void()>& body, int line) {
  try {
    body();
    check(false, "an error", line);
  } catch (const Error& e) {
    if (e.status() != status || std::string(e.what()).find(part) == std::string::npos) {
      std::printf("line %d: expected '%s', got '%s'\n", line, part, e.what());
      ++num_failures;
    }
  }
}
#define CHECK_THROWS(status, part, body) check_throws(status, part, [&] { body; }, __LINE__)

const OpRef add{"add"}, multiply{"multiply"}, matmul{"matmul"}, full{"full"}, tanh_{"tanh"}, sum{"sum"},
    copy_into{"copy_"}, add_into{"add_"}, permute{"permute_dims"};

Tensor filled(const Shape& shape, double value) {
  return full({}, {Attr::of_ints(shape), Attr::of_float(value), Attr::of_dtype(DType::float32)});
}
Tensor total(const Tensor& t) { return sum({t}, {Attr::of_all_axes(), Attr::of_bool(false)}); }
float value_of(const Tensor& t) { return *static_cast<const float*>(t.data()); }

Tensor leaf(const Shape& shape, double value) {
  Tensor t = filled(shape, value);
  ensure_grad_meta(t).requires_grad = true;
  return t;
}

void test_dispatch() {
  const Tensor a = filled({2, 3}, 2.0), b = filled({3}, 0.5);
  CHECK(value_of(add({a, b})) == 2.5f);
  CHECK(add({permute({a}, {Attr::of_ints({1, 0})}), filled({2}, 1)}).shape() == Shape({3, 2}));
  CHECK_THROWS(Status::invalid_value, "[add]", add({a, filled({4}, 1)}));
  CHECK_THROWS(Status::invalid_value, "expected 2 tensors, got 1", add({a}));
  CHECK_THROWS(Status::invalid_type, "expected a tensor for 'b'", add({a, Tensor{}}));
  CHECK_THROWS(Status::index, "[sum]", sum({a}, {Attr::of_axes({7}), Attr::of_bool(false)}));
  CHECK_THROWS(Status::runtime, "not registered", OpRef{"no such operator"}({a}));
  const uint64_t before = a.storage().version();
  add_into.many({a, b});
  CHECK(a.storage().version() == before + 1 && std::string(a.storage().last_writer()) == "add_");
  CHECK(value_of(a) == 2.5f);
}

void test_registry() {
  Operator op;
  op.name = "test.unit";
  op.doc = "Copies its input.";
  op.inputs = {{.name = "x"}};
  op.infer = [](const OpCall& c) { return std::vector<TensorSpec>{spec_of(c.inputs[0])}; };
  op.launch_cpu = [](const Launch& l) {
    std::memcpy(l.outputs[0].data, l.inputs[0].data,
                static_cast<size_t>(l.inputs[0].numel()) * dtype_size(l.inputs[0].dtype));
  };
  const Operator& stored = OperatorRegistry::instance().add(op);
  CHECK(&OperatorRegistry::instance().at(stored.id) == &stored);
  CHECK(value_of(OpRef{"test.unit"}({filled({2}, 3)})) == 3.0f);
  CHECK_THROWS(Status::invalid_value, "taken", OperatorRegistry::instance().add(op));
  op.name.clear();
  CHECK_THROWS(Status::invalid_value, "needs a name", OperatorRegistry::instance().add(op));
  op.name = "test.other";
  op.infer = nullptr;
  CHECK_THROWS(Status::invalid_value, "needs an inference function", OperatorRegistry::instance().add(op));
  CHECK(std::string(blutensor_operator_table()).find("\"test.unit\"") != std::string::npos);
}

void test_autograd() {
  const Tensor x = leaf({3}, 2.0);
  {
    const Tensor y = total(multiply({x, x}));
    backward({y}, {}, {});
    CHECK(value_of(read_grad(x)) == 4.0f);
    CHECK_THROWS(Status::runtime, "retain_graph", backward({y}, {}, {}));
  }
  backward({total(x)}, {}, {});
  CHECK(value_of(read_grad(x)) == 5.0f);
  set_grad_stale(x, true);
  backward({total(x)}, {}, {});
  CHECK(value_of(read_grad(x)) == 1.0f);
  const Tensors grads =
      gradients({total(multiply({multiply({x, x}), x}))}, {}, {x}, {.retain_graph = false, .create_graph = true});
  const Tensors second = gradients({total(grads[0])}, {}, {x}, {});
  CHECK(value_of(grads[0]) == 12.0f && value_of(second[0]) == 12.0f);
  CHECK_THROWS(Status::autograd, "not recorded for backward", copy_into.many({filled({3}, 0), x}));
  const Tensor factor = filled({3}, 1);
  const Tensor product = total(multiply({x, factor}));
  add_into.many({factor, filled({3}, 1)});
  CHECK_THROWS(Status::runtime, "'add_' wrote to it in place", backward({product}, {}, {}));
}

void test_long_chain() {
  const uint64_t before = Node::live_nodes();
  const Tensor x = leaf({}, 1.0);
  {
    Tensor y = x;
    for (int i = 0; i < 100'000; ++i) y = multiply({y, x});
    CHECK(Node::live_nodes() == before + 100'000);
    backward({y}, {}, {});
  }
  CHECK(value_of(read_grad(x)) == 100'001.0f);
  {
    Tensor dropped = x;
    for (int i = 0; i < 100'000; ++i) dropped = add({dropped, x});
  }
  CHECK(Node::live_nodes() == before);
}

// One step of gradient descent on |tanh(x w)|^2: records a program when asked to.
struct Step {
  Tensor x = filled({16, 8}, 0.5), w = leaf({8, 8}, 0.125), rate = filled({}, -0.01), loss = filled({}, 0);

  void operator()() const {
    const Tensor y = tanh_({matmul({x, w})});
    const Tensor result = total(multiply({y, y}));
    if (grad_meta(w)->grad.defined()) set_grad_stale(w, true);
    backward({result}, {}, {});
    const GradModeGuard guard(false);
    add_into.many({w, multiply({read_grad(w), rate})});
    copy_into.many({loss, result});
  }
  Ref<Program> record(const char* name) const {
    Recorder recorder(name, false);
    (*this)();
    return recorder.finish({x}, {});
  }
};

void test_capture_and_replay() {
  Step eager, captured;
  std::vector<float> expected, got;
  for (int i = 0; i < 8; ++i) {
    eager();
    expected.push_back(value_of(eager.loss));
  }
  static_cast<void>(captured.record("step"));
  got.push_back(value_of(captured.loss));
  const Ref<Program> second = captured.record("step");
  got.push_back(value_of(captured.loss));
  CHECK(Recorder::active() == nullptr);
  second->plan();
  CHECK(second->arena_bytes() >= second->peak_live_bytes() && second->peak_live_bytes() > 0);
  CHECK(second->to_text().find("matmul") != std::string::npos);
  // No two internal buffers that live at once share bytes.
  for (const Buffer& a : second->buffers)
    for (const Buffer& b : second->buffers) {
      const bool packed = (a.kind == BufferKind::internal || a.kind == BufferKind::workspace) &&
                          (b.kind == BufferKind::internal || b.kind == BufferKind::workspace);
      if (&a == &b || !packed || a.last_call < b.first_call || b.last_call < a.first_call) continue;
      CHECK(a.arena_offset + a.bytes <= b.arena_offset || b.arena_offset + b.bytes <= a.arena_offset);
    }
  const auto family = make_ref<Family>("family");
  const auto bound = make_ref<BoundProgram>(second);
  family->add(bound);
  CHECK_THROWS(Status::invalid_value, "finalized already", family->add(bound));
  bound->run();
  got.push_back(value_of(captured.loss));
  int64_t calls = 0;
  bound->run_operator_by_operator([&](int64_t index, const char*) { calls += index == calls; });
  CHECK(calls == static_cast<int64_t>(second->calls.size()));
  got.push_back(value_of(captured.loss));
  RunLoop loop;
  loop.phases = {{bound.get(), 1}};
  loop.steps = 4;
  loop.metrics = {captured.loss};
  std::vector<double> metrics(4);
  loop.metric_values = metrics.data();
  loop.run(*family);
  for (const double m : metrics) got.push_back(static_cast<float>(m));
  CHECK(loop.steps_done == 4);
  CHECK(got == expected);
  CHECK(std::memcmp(captured.w.data(), eager.w.data(), captured.w.nbytes()) == 0);
  // The host's note on the gradient is part of what a program expects.
  ensure_grad_meta(captured.w).grad_stale = true;
  CHECK_THROWS(Status::capture, "zero_grad", bound->run());
  family->remove(bound.get());
}

void test_recordings_that_differ() {
  const Tensor x = filled({4}, 1), other = filled({4}, 1);
  const auto record = [&](const Tensor& operand, double scale) {
    Recorder recorder("differs", false);
    const Tensor y = multiply({operand, filled({}, scale)});
    return recorder.finish({}, {y});
  };
  const Ref<Program> a = record(x, 1), b = record(x, 2), c = record(other, 1), d = record(x, 1);
  a->check_same(*d);
  CHECK_THROWS(Status::capture, "'multiply'", a->check_same(*b));
  CHECK_THROWS(Status::capture, "another tensor", a->check_same(*c));
  Recorder running("outer", false);
  CHECK_THROWS(Status::capture, "do not nest", Recorder("inner", false));
}

// What a captured function leaves behind may die on any thread, during the recording and after it.
void test_left_behind() {
  Tensor kept;
  Ref<Program> program;
  {
    Recorder recorder("leaks", false);
    std::vector<Tensor> list;
    for (int i = 0; i < 100; ++i) list.push_back(filled({16}, i));
    kept = list[3];
    std::thread([&] { list.clear(); }).join();
    program = recorder.finish({}, {});
  }
  CHECK(value_of(add({kept, kept})) == 6.0f);
  program->mark_left_behind();
  CHECK_THROWS(Status::capture, "'leaks'", add({kept, kept}));
}

// Threads with graphs, captures and replays of their own: one dispatcher, one pool, one graph arena.
void test_threads() {
  Step reference;
  for (int i = 0; i < 6; ++i) reference();
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&reference] {
      Step step;
      static_cast<void>(step.record("step"));
      const Ref<Program> program = step.record("step");
      program->plan();
      const auto family = make_ref<Family>("thread");
      const auto bound = make_ref<BoundProgram>(program);
      family->add(bound);
      for (int i = 0; i < 4; ++i) bound->run();
      CHECK(std::memcmp(step.w.data(), reference.w.data(), step.w.nbytes()) == 0);
      family->remove(bound.get());
    });
  for (std::thread& thread : threads) thread.join();
}

// The C edge: no exception leaves it, messages are per thread, callbacks' contexts are released once.
void test_c_interface() {
  int released = 0;
  float memory[6] = {0, 1, 2, 3, 4, 5};
  const int64_t shape[2] = {2, 3}, strides[2] = {-3, 1};
  blutensor_tensor* t = nullptr;
  const auto count = [](void* context) { ++*static_cast<int*>(context); };
  CHECK(blutensor_from_memory(memory + 3, shape, strides, 2, 0, 0, 0, count, &released, &t) == 0);
  blutensor_tensor_info info{};
  info.struct_size = sizeof info;
  CHECK(blutensor_tensor_get_info(t, &info) == 0 && info.shape[1] == 3 && info.strides[0] == -3 && !info.contiguous);
  void* managed = nullptr;
  CHECK(blutensor_to_dlpack(t, &managed) == 0);
  blutensor_tensor* again = nullptr;
  CHECK(blutensor_from_dlpack(managed, &again) == 0);
  CHECK(blutensor_tensor_address(again) == blutensor_tensor_address(t));
  blutensor_tensor_release(t);
  CHECK(released == 0);
  blutensor_tensor_release(again);
  CHECK(released == 1);
  CHECK(blutensor_empty(shape, 99, 0, 0, 0, &t) == BLUTENSOR_STATUS_INVALID_VALUE);
  CHECK(blutensor_empty(shape, 2, 42, 0, 0, &t) == BLUTENSOR_STATUS_INVALID_TYPE);
  CHECK(blutensor_tensor_get_info(nullptr, &info) == BLUTENSOR_STATUS_INVALID_TYPE);
  std::thread([] { CHECK(std::string(blutensor_last_error()).empty()); }).join();
  blutensor_program* program = nullptr;
  CHECK(blutensor_capture_end(nullptr, 0, nullptr, 0, &program) == BLUTENSOR_STATUS_CAPTURE);
  CHECK(blutensor_capture_begin("empty", 0) == 0 && blutensor_capture_active());
  CHECK(blutensor_capture_begin("nested", 0) == BLUTENSOR_STATUS_CAPTURE);
  CHECK(blutensor_capture_end(nullptr, 0, nullptr, 0, &program) == 0);
  CHECK(blutensor_program_replay(program, 0, nullptr, nullptr) == BLUTENSOR_STATUS_CAPTURE);
  CHECK(blutensor_program_finalize(program, nullptr) == 0);
  CHECK(blutensor_program_replay(program, 0, nullptr, nullptr) == 0);
  CHECK(blutensor_program_replay(program, 7, nullptr, nullptr) == BLUTENSOR_STATUS_INVALID_VALUE);
  blutensor_program_release(program);
  CHECK(blutensor_capture_begin("aborted", 1) == 0);
  blutensor_capture_abort();
  CHECK(!blutensor_capture_active());
}

}  // namespace

int main() {
  blutensor::api::initialize();
  const std::pair<const char*, void (*)()> tests[] = {
      {"dispatch", test_dispatch},
      {"registry", test_registry},
      {"autograd", test_autograd},
      {"long chain", test_long_chain},
      {"capture and replay", test_capture_and_replay},
      {"recordings that differ", test_recordings_that_differ},
      {"left behind", test_left_behind},
      {"threads", test_threads},
      {"C interface", test_c_interface},
  };
  for (const auto& [name, test] : tests) {
    const int before = num_failures;
    try {
      test();
    } catch (const std::exception& e) {
      std::printf("%s: unexpected error: %s\n", name, e.what());
      ++num_failures;
    }
    std::printf("%-24s %s\n", name, num_failures == before ? "ok" : "FAILED");
  }
  return num_failures ? 1 : 0;
}
