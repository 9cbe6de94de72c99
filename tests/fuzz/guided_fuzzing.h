// What the three fuzz targets of guided decoding share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "common/base/check.h"
#include "common/guided/compile.h"
#include "common/guided/state_graph.h"

namespace tandem::guided {

// Compiles any bytes. A constraint that compiles is walked with the input's own bytes and with
// choices among the allowed bytes. No step may crash; at every position some byte is allowed or the
// text may end, unless the grammar is more ambiguous than kThreadsMax.
inline void FuzzFrontend(request::GuidedParams::Kind kind, const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const auto program = Compile({.kind = kind, .text = text}, 16);
  if (!program.ok()) {
    TANDEM_CHECK(!program.status().message().empty());
    return;
  }
  StateGraph graph(*program);
  ConfigId config = graph.start();
  for (size_t i = 0; i < size && i < 64; ++i) {
    config = graph.Step(config, data[i]);
    if (config == kDeadConfig) config = graph.start();
    TANDEM_CHECK(graph.Representative(config) != kDeadConfig);
  }
  config = graph.start();
  uint32_t random = 1;
  for (int step = 0; step < 64 && graph.work() < 2000000; ++step) {
    ConfigId next = kDeadConfig;
    random =
        random * 1664525 + 1013904223 + (size > 0 ? data[static_cast<size_t>(step) % size] : 0);
    for (uint32_t i = 0; i < 256 && next == kDeadConfig; ++i) {
      next = graph.Step(config, static_cast<uint8_t>((random >> 16) + i));
    }
    if (next == kDeadConfig) {
      TANDEM_CHECK(graph.MayEnd(config) || graph.overflows() > 0, "a dead end after ", step,
                   " bytes");
      return;
    }
    config = next;
  }
}

}  // namespace tandem::guided
