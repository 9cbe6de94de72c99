// What the three fuzz targets of guided decoding share.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "common/base/check.h"
#include "common/guided/compile.h"
#include "common/guided/constraint.h"
#include "common/guided/state_graph.h"

namespace tandem::guided {

// Single bytes, and what a small model's tokens look like beside them.
inline std::shared_ptr<const Vocabulary> FuzzVocabulary() {
  static const auto* vocabulary = new std::shared_ptr<const Vocabulary>([] {
    std::vector<std::string> tokens = {""};
    for (int b = 0; b < 256; ++b) tokens.push_back(std::string(1, static_cast<char>(b)));
    const std::string letters = "aab01 {}[]\":,()";
    for (size_t i = 0; i < 600; ++i) {
      std::string& token = tokens.emplace_back();
      for (size_t n = i; token.empty() || n > 0; n /= letters.size())
        token += letters[n % letters.size()];
    }
    return std::make_shared<const Vocabulary>(std::move(tokens));
  }());
  return *vocabulary;
}

// Follows a constraint with masks, as a node does. It may be refused at any place, and only for
// what a mask may cost; its memory stays within its bounds.
inline void FuzzMasks(const Program& program, const uint8_t* data, size_t size) {
  // A graph is replaced once it exceeds the first bound; one mask may take it to the second.
  constexpr size_t kBytesMax = kGraphBytesMax + Constraint::kMaskBytesMax;
  const auto constraint = std::make_shared<Constraint>(program, FuzzVocabulary());
  if (const absl::Status tried = constraint->Try(); !tried.ok()) {
    TANDEM_CHECK(absl::StrContains(tried.message(), "too ambiguous"), tried.message());
    return;
  }
  Matcher matcher(constraint, {.eos_token_ids = {0}});
  for (size_t step = 0; step < 16 && !matcher.ended(); ++step) {
    const auto allowed = matcher.Allowed();
    if (!allowed.ok()) break;
    size_t token = size > 0 ? data[step % size] : step;
    while ((((*allowed)[token / 32] >> (token % 32)) & 1) == 0)
      token = (token + 1) % static_cast<size_t>(FuzzVocabulary()->size());
    const absl::Status advanced = matcher.Advance(static_cast<TokenId>(token));
    if (absl::StrContains(advanced.message(), "too ambiguous")) break;
    TANDEM_CHECK(advanced.ok(), advanced.message());
    TANDEM_CHECK(constraint->bytes() <= kBytesMax + program.bytes.size() * sizeof(ByteEdge) * 4);
  }
}

// Compiles any bytes, within the budget. A constraint that compiles is walked with the input's own
// bytes and with choices among the allowed bytes. No step may crash; at every position some byte is
// allowed or the text may end, unless the grammar is more ambiguous than kThreadsMax.
inline void FuzzFrontend(request::GuidedParams::Kind kind, const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  CompileBudget budget;
  const auto program = Compile({.kind = kind, .text = text}, 16, budget);
  // The last piece of work may exceed the budget, by less than all that came before it.
  TANDEM_CHECK(budget.steps() <= 2 * CompileBudget::kStepsMax, budget.steps());
  if (!program.ok()) {
    TANDEM_CHECK(!program.status().message().empty());
    return;
  }
  FuzzMasks(*program, data, size);
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
