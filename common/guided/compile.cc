#include "common/guided/compile.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/guided/char_dfa.h"
#include "common/guided/regex.h"
#include "common/guided/state_graph.h"
#include "common/model/tokenizer/utf8.h"

namespace tandem::guided {
namespace {

using Kind = request::GuidedParams::Kind;

absl::StatusOr<RuleId> AddRoot(const request::GuidedParams& params, GrammarBuilder& builder) {
  switch (params.kind) {
    case Kind::kJsonSchema:
      return AddJsonSchema(params.text, builder);
    case Kind::kJsonObject:
      return AddJsonSchema(R"({"type": "object"})", builder);
    case Kind::kRegex:
      return AddRegex(params.text, builder);
    case Kind::kChoice:
      return AddChoice(params.choices, builder);
    case Kind::kGrammar:
      return AddGbnf(params.text, builder);
    case Kind::kNone:
      break;
  }
  return absl::InvalidArgumentError("no constraint is given");
}

absl::Status CheckChoicesSize(const std::vector<std::string>& choices) {
  if (choices.empty() || choices.size() > kChoicesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("choice: ", choices.size(), " options, expected 1 to ", kChoicesMax));
  }
  size_t bytes = 0;
  for (const std::string& choice : choices) bytes += choice.size();
  if (bytes <= kSourceBytesMax) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("choice: ", bytes, " bytes in all, expected at most ", kSourceBytesMax));
}

}  // namespace

absl::Status CheckSize(const request::GuidedParams& params) {
  if (params.kind == Kind::kChoice) return CheckChoicesSize(params.choices);
  if (params.text.size() <= kSourceBytesMax) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("constraint of ", params.text.size(),
                                                 " bytes, expected at most ", kSourceBytesMax));
}

absl::StatusOr<Program> Compile(const request::GuidedParams& params, int token_bytes_max) {
  CompileBudget budget;
  return Compile(params, token_bytes_max, budget);
}

absl::StatusOr<Program> Compile(const request::GuidedParams& params, int token_bytes_max,
                                CompileBudget& budget) {
  RETURN_IF_ERROR(CheckSize(params));
  GrammarBuilder builder(budget);
  ASSIGN_OR_RETURN(const RuleId root, AddRoot(params, builder));
  ASSIGN_OR_RETURN(Program program, Lower(builder, root, token_bytes_max));
  if (StateGraph(program).start() == kDeadConfig) {
    return absl::InvalidArgumentError(
        absl::StrCat("the constraint is too ambiguous: its first byte can be reached in more than ",
                     kThreadsMax, " ways"));
  }
  return program;
}

absl::StatusOr<RuleId> AddRegex(absl::string_view pattern, GrammarBuilder& builder) {
  ASSIGN_OR_RETURN(const RegexNode regex, ParseRegex(pattern, builder.budget()));
  ASSIGN_OR_RETURN(const CharDfa dfa, CompileRegex(regex, RegexMode::kWhole, builder.budget()));
  const RuleId rule = builder.NewRule("regex");
  builder.AddAutomaton(builder.start(rule), dfa, GrammarBuilder::Spelling::kPlain,
                       builder.end(rule));
  return rule;
}

absl::StatusOr<RuleId> AddChoice(const std::vector<std::string>& choices, GrammarBuilder& builder) {
  RETURN_IF_ERROR(CheckChoicesSize(choices));
  for (size_t i = 0; i < choices.size(); ++i) {
    if (choices[i].empty()) {
      return absl::InvalidArgumentError(absl::StrCat("choice: option ", i, " is empty"));
    }
    if (!model::tokenizer_internal::IsValidUtf8(choices[i])) {
      return absl::InvalidArgumentError(absl::StrCat("choice: option ", i, " is not UTF-8"));
    }
  }
  const RuleId rule = builder.NewRule("choice");
  builder.AddWords(builder.start(rule), choices, builder.end(rule));
  return rule;
}

}  // namespace tandem::guided
