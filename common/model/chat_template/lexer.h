// Splits a template's source into tokens, applying white-space control: `-` strips to the tag,
// trim_blocks drops the newline after a block or comment tag, lstrip_blocks the indentation before
// one; `+` keeps them. Thread safety: pure functions. Errors: kInvalidArgument with the line.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/model/chat_template/value.h"

namespace tandem::model::chat_template {

struct Token {
  enum class Kind {
    kData,           // text between tags
    kVariableBegin,  // {{
    kVariableEnd,
    kBlockBegin,  // {%
    kBlockEnd,
    kName,
    kText,  // a string literal, decoded
    kInteger,
    kDouble,
    kOperator,
    kEnd,
  };
  Kind kind = Kind::kEnd;
  std::string text;  // data, name, literal or operator
  Integer integer = 0;
  double real = 0.0;
  int line = 1;
};

// Ends with a kEnd token. Comments are dropped, raw blocks become data.
absl::StatusOr<std::vector<Token>> Tokenize(absl::string_view source);

// kInvalidArgument: "chat template line 7: …".
absl::Status ErrorAt(int line, absl::string_view message);

}  // namespace tandem::model::chat_template
