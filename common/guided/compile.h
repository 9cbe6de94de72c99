// From what a client asked for to an automaton. Every frontend refuses what it does not support by
// name; nothing is silently ignored. docs/GUIDED.md lists what each of them reads.
// Thread safety: pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/guided/grammar_builder.h"
#include "common/guided/program.h"
#include "common/request/guided_params.h"

namespace tandem::guided {

inline constexpr size_t kSourceBytesMax = 256 << 10;  // of a schema, an expression or a grammar
inline constexpr size_t kChoicesMax = 20000;

// REQUIRES: params.any(). `token_bytes_max` as Lower's.
// Errors: kInvalidArgument for what is malformed, unsupported, satisfied by nothing or beyond a
// bound (the message names the keyword, rule or byte), and when the very start is too ambiguous.
absl::StatusOr<Program> Compile(const request::GuidedParams& params, int token_bytes_max);

// The frontends: each adds rules and returns the one that a whole answer matches.
absl::StatusOr<RuleId> AddRegex(absl::string_view pattern, GrammarBuilder& builder);
absl::StatusOr<RuleId> AddChoice(const std::vector<std::string>& choices, GrammarBuilder& builder);
absl::StatusOr<RuleId> AddGbnf(absl::string_view grammar, GrammarBuilder& builder);
absl::StatusOr<RuleId> AddJsonSchema(absl::string_view schema, GrammarBuilder& builder);

}  // namespace tandem::guided
