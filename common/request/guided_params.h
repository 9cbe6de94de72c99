// The constraint on an answer's form, as the client wrote it. common/guided compiles it.
// Thread safety: plain values. Owner: the request.
#pragma once

#include <string>
#include <vector>

namespace tandem::request {

struct GuidedParams {
  enum class Kind { kNone, kJsonSchema, kJsonObject, kRegex, kChoice, kGrammar };
  Kind kind = Kind::kNone;
  std::string text;                  // the schema, expression or grammar
  std::vector<std::string> choices;  // kChoice

  bool any() const { return kind != Kind::kNone; }
  friend bool operator==(const GuidedParams& a, const GuidedParams& b) {
    return a.kind == b.kind && a.text == b.text && a.choices == b.choices;
  }
  template <typename H>
  friend H AbslHashValue(H h, const GuidedParams& params) {
    return H::combine(std::move(h), static_cast<int>(params.kind), params.text, params.choices);
  }
};

}  // namespace tandem::request
