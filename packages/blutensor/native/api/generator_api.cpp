// The process's random generator.
#include "api/handles.h"
#include "runtime/generator.h"

using namespace blutensor;
using namespace blutensor::api;

extern "C" {

int32_t blutensor_generator_state(blutensor_tensor** out) { return blutensor_generator_state_on(0, 0, out); }
int32_t blutensor_generator_state_on(int32_t device_type, int32_t device_index, blutensor_tensor** out) {
  return guarded([&] {
    initialize();
    *out = to_handle(Generator::instance().state(checked_device(device_type, device_index)));
  });
}
int32_t blutensor_generator_advance(void) {
  return guarded([&] {
    initialize();
    Generator::instance().advance();
  });
}
int64_t blutensor_generator_next_op_id(void) { return Generator::instance().next_op_id(); }
void blutensor_generator_set_op_id(int64_t op_id) { Generator::instance().set_op_id(op_id); }
int64_t blutensor_generator_op_id(void) { return Generator::instance().op_id(); }
void blutensor_generator_begin_step(void) { Generator::instance().begin_step(); }

}  // extern "C"
