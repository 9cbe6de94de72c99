// Compiles a client's constraint (a JSON Schema, a regular expression, choices or a grammar) into a
// Program. A frontend rejects what it does not support, and the message names it; no frontend
// ignores anything silently. docs/GUIDED.md lists what each frontend reads.
// Thread safety: pure functions.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/guided/compile_budget.h"
#include "common/guided/grammar_builder.h"
#include "common/guided/program.h"
#include "common/request/guided_params.h"

namespace tandem::guided {

// The largest schema, expression or grammar, in bytes.
inline constexpr size_t kSourceBytesMax = 256 << 10;
inline constexpr size_t kChoicesMax = 20000;

// kInvalidArgument when the source, or the choices together, exceed the bounds above. Costs next to
// nothing, so that a server asks it before it keeps `params` anywhere.
absl::Status CheckSize(const request::GuidedParams& params);

// `token_bytes_max`: as for Lower. REQUIRES: params.any().
// Errors: kInvalidArgument when the constraint is malformed, unsupported, beyond a bound, or
// nothing satisfies it (the message names the keyword, rule or byte), when its start is too
// ambiguous, or when compiling it exceeds the budget (CompileBudget::kStepsMax without one).
absl::StatusOr<Program> Compile(const request::GuidedParams& params, int token_bytes_max);
absl::StatusOr<Program> Compile(const request::GuidedParams& params, int token_bytes_max,
                                CompileBudget& budget);

// The frontends. Each adds rules to `builder` and returns the rule that a whole answer matches.
// Errors: as Compile.
absl::StatusOr<RuleId> AddRegex(absl::string_view pattern, GrammarBuilder& builder);
absl::StatusOr<RuleId> AddChoice(const std::vector<std::string>& choices, GrammarBuilder& builder);
absl::StatusOr<RuleId> AddGbnf(absl::string_view grammar, GrammarBuilder& builder);
absl::StatusOr<RuleId> AddJsonSchema(absl::string_view schema, GrammarBuilder& builder);

}  // namespace tandem::guided
