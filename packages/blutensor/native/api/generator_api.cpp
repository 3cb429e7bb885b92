// Random generators.
#include "api/handles.h"
#include "runtime/generator.h"

using namespace blutensor;
using namespace blutensor::api;

extern "C" {

int32_t blutensor_generator_state(blutensor_tensor** out) { return blutensor_generator_state_on(0, 0, out); }
int32_t blutensor_generator_state_on(int32_t device_type, int32_t device_index, blutensor_tensor** out) {
  return guarded([&] {
    initialize();
    *out = to_handle(Generator::current().state(checked_device(device_type, device_index)));
  });
}
int32_t blutensor_generator_advance(void) {
  return guarded([&] {
    initialize();
    Generator::current().advance();
  });
}
int64_t blutensor_generator_next_op_id(void) { return Generator::current().next_op_id(); }
void blutensor_generator_set_op_id(int64_t op_id) { Generator::current().set_op_id(op_id); }
int64_t blutensor_generator_op_id(void) { return Generator::current().op_id(); }
void blutensor_generator_begin_step(void) { Generator::current().begin_step(); }

int32_t blutensor_generator_create(blutensor_generator** out) {
  return guarded([&] {
    initialize();
    *out = reinterpret_cast<blutensor_generator*>(make_ref<Generator>().detach());
  });
}
void blutensor_generator_release(blutensor_generator* generator) {
  if (generator) reinterpret_cast<Generator*>(generator)->release();
}
void blutensor_generator_use(blutensor_generator* generator) {
  Generator::set_current(Ref<Generator>(reinterpret_cast<Generator*>(generator)));
}

}  // extern "C"
