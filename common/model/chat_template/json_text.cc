// Implements ToJson (common/model/chat_template/value.h). The text is what Python's json.dumps
// writes.
#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/model/chat_template/text.h"
#include "common/model/chat_template/value.h"

namespace tandem::model::chat_template {
namespace {

class Writer {
 public:
  Writer(const JsonFormat& format, std::string* out) : format_(format), out_(*out) {}

  absl::Status Write(const Value& value) {
    if (static_cast<int64_t>(out_.size()) > kTextBytesMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("tojson: expected at most ", kTextBytesMax, " bytes"));
    }
    if (value.is_text()) return Text(value.text());
    if (value.is_list() && !value.is_generator()) return Array(value.list());
    if (value.is_dict()) return Object(value.dict());
    ASSIGN_OR_RETURN(const std::string text, Scalar(value));
    absl::StrAppend(&out_, text);
    return absl::OkStatus();
  }

 private:
  static absl::StatusOr<std::string> Scalar(const Value& value) {
    if (value.is_none()) return "null";
    if (value.is_bool()) return value.boolean() ? "true" : "false";
    if (value.is_integer()) return IntegerText(value.integer());
    if (value.is_double()) {
      if (std::isnan(value.real())) return "NaN";
      if (std::isinf(value.real())) return value.real() < 0 ? "-Infinity" : "Infinity";
      return ReprDouble(value.real());
    }
    return absl::InvalidArgumentError(
        absl::StrCat("tojson: expected a JSON value, found ", value.TypeName()));
  }

  void Escape(char32_t c) {
    if (c >= 0x10000) {
      absl::StrAppendFormat(&out_, "\\u%04x\\u%04x", 0xd800 + ((c - 0x10000) >> 10),
                            0xdc00 + ((c - 0x10000) & 0x3ff));
    } else {
      absl::StrAppendFormat(&out_, "\\u%04x", c);
    }
  }

  absl::Status Text(absl::string_view text) {
    out_.push_back('"');
    while (!text.empty()) {
      const size_t bytes = CodePointBytes(text);
      const char32_t c = DecodeCodePoint(text);
      static constexpr char kShort[] = "\"\"\\\\\nn\rr\tt\ff\bb";
      const char* found = nullptr;
      for (const char* pair = kShort; c < 0x80 && *pair != '\0' && found == nullptr; pair += 2) {
        if (static_cast<char32_t>(*pair) == c) found = pair;
      }
      if (found != nullptr) {
        out_.push_back('\\');
        out_.push_back(found[1]);
      } else if (c < 0x20 || (format_.ensure_ascii && c > 0x7e)) {
        Escape(c);
      } else {
        absl::StrAppend(&out_, text.substr(0, bytes));
      }
      text.remove_prefix(bytes);
    }
    out_.push_back('"');
    return absl::OkStatus();
  }

  void NewLine() {
    if (!format_.has_indent) return;
    out_.push_back('\n');
    for (int i = 0; i < level_; ++i) absl::StrAppend(&out_, format_.indent);
  }

  absl::Status Array(const List& list) {
    if (list.items.empty()) {
      absl::StrAppend(&out_, "[]");
      return absl::OkStatus();
    }
    out_.push_back('[');
    ++level_;
    bool first = true;
    for (const Value& item : list.items) {
      if (!first) absl::StrAppend(&out_, format_.item_separator);
      first = false;
      NewLine();
      RETURN_IF_ERROR(Write(item));
    }
    --level_;
    NewLine();
    out_.push_back(']');
    return absl::OkStatus();
  }

  absl::Status Object(const Dict& dict) {
    if (dict.entries.empty()) {
      absl::StrAppend(&out_, "{}");
      return absl::OkStatus();
    }
    std::vector<std::pair<std::string, const Value*>> entries;
    for (const auto& [key, value] : dict.entries) {
      if (key.is_text()) {
        entries.emplace_back(key.text(), &value);
        continue;
      }
      ASSIGN_OR_RETURN(std::string text, Scalar(key));
      entries.emplace_back(std::move(text), &value);
    }
    if (format_.sort_keys) {
      std::stable_sort(entries.begin(), entries.end(),
                       [](const auto& a, const auto& b) { return a.first < b.first; });
    }
    out_.push_back('{');
    ++level_;
    bool first = true;
    for (const auto& [key, value] : entries) {
      if (!first) absl::StrAppend(&out_, format_.item_separator);
      first = false;
      NewLine();
      RETURN_IF_ERROR(Text(key));
      absl::StrAppend(&out_, format_.key_separator);
      RETURN_IF_ERROR(Write(*value));
    }
    --level_;
    NewLine();
    out_.push_back('}');
    return absl::OkStatus();
  }

  const JsonFormat& format_;
  std::string& out_;
  int level_ = 0;
};

}  // namespace

absl::StatusOr<std::string> ToJson(const Value& value, const JsonFormat& format) {
  std::string out;
  RETURN_IF_ERROR(Writer(format, &out).Write(value));
  return out;
}

}  // namespace tandem::model::chat_template
