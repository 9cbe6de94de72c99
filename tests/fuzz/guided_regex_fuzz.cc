// Goal: any bytes as a regular expression keep the promises of guided_fuzzing.h.
#include "tests/fuzz/guided_fuzzing.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tandem::guided::FuzzFrontend(tandem::request::GuidedParams::Kind::kRegex, data, size);
  return 0;
}
