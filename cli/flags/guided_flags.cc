#include "cli/flags/guided_flags.h"

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "cli/files/named_file.h"
#include "common/base/status_macros.h"

namespace tandem::cli {
namespace {

// Beyond it a router refuses the request.
constexpr int64_t kConstraintBytesMax = 16 << 20;

// An empty value, such as that of a shell's unset variable, must not pass for no constraint.
config::FieldOptions<std::string> NotEmpty(const char* expected) {
  return {.group = "Guided decoding", .check = [expected](const std::string& value) {
            return value.empty() ? absl::InvalidArgumentError(expected) : absl::OkStatus();
          }};
}

}  // namespace

void RegisterGuidedFlags(config::Schema& schema, GuidedFlags& flags) {
  schema.Add("json-schema", &flags.json_schema,
             "File with a JSON Schema the answer satisfies; - = standard input.",
             NotEmpty("a file, or - for standard input"));
  schema.Add("json-object", &flags.json_object, "The answer is a JSON object.",
             {.group = "Guided decoding"});
  schema.Add("regex", &flags.regex, "Regular expression the whole answer matches.",
             NotEmpty("a regular expression that is not empty"));
  schema.Add("choice", &flags.choice, "The answer is one of these.",
             {.group = "Guided decoding", .check = [](const std::vector<std::string>& texts) {
                return texts.empty() ? absl::InvalidArgumentError("at least one text")
                                     : absl::OkStatus();
              }});
  schema.Add("grammar", &flags.grammar,
             "File with an EBNF grammar (GBNF) the answer follows; - = standard input.",
             NotEmpty("a file, or - for standard input"));
}

absl::Status ApplyGuidedFlags(const GuidedFlags& flags, v1::GenerateRequest& request) {
  const int given = (flags.json_schema.empty() ? 0 : 1) + (flags.json_object ? 1 : 0) +
                    (flags.regex.empty() ? 0 : 1) + (flags.choice.empty() ? 0 : 1) +
                    (flags.grammar.empty() ? 0 : 1);
  if (given == 0) return absl::OkStatus();
  if (given > 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "expected at most one of --json-schema, --json-object, --regex, --choice and --grammar, "
        "got ",
        given));
  }
  v1::GuidedDecoding& guided = *request.mutable_guided();
  if (!flags.json_schema.empty()) {
    ASSIGN_OR_RETURN(*guided.mutable_json_schema(),
                     ReadInput({"--json-schema", flags.json_schema}, kConstraintBytesMax));
  } else if (!flags.grammar.empty()) {
    ASSIGN_OR_RETURN(*guided.mutable_grammar(),
                     ReadInput({"--grammar", flags.grammar}, kConstraintBytesMax));
  } else if (!flags.regex.empty()) {
    guided.set_regex(flags.regex);
  } else if (flags.json_object) {
    guided.set_json_object(true);
  } else {
    for (const std::string& option : flags.choice) guided.mutable_choice()->add_options(option);
  }
  return absl::OkStatus();
}

}  // namespace tandem::cli
