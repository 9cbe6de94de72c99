// Goal: any bytes as a JSON Schema keep the promises of guided_fuzzing.h.
#include "tests/fuzz/guided_fuzzing.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tandem::guided::FuzzFrontend(tandem::request::GuidedParams::Kind::kJsonSchema, data, size);
  return 0;
}
