// Rewrites text before it is split: Unicode normal forms (ICU), replacements and a prefix, in the
// checkpoint's order. Thread safety: const methods from any thread. Owner: TokenizerData.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/model/tokenizer/regex_splitter.h"

namespace tandem::model::tokenizer_internal {

class Normalizer {
 public:
  enum class Form { kNfc, kNfd, kNfkc, kNfkd };

  absl::Status AddForm(Form form);
  // Every `pattern` becomes `content`. REQUIRES: pattern is not empty.
  void AddReplace(absl::string_view pattern, absl::string_view content);
  void AddReplaceRegex(RegexSplitter regex, absl::string_view content);
  // `content` goes before the text, unless that is empty.
  void AddPrepend(absl::string_view content);

  // Returns the normal form of `text`: `text` itself, or a view of `*first` or `*second`, both of
  // which are scratch. REQUIRES: well-formed UTF-8.
  absl::string_view Apply(absl::string_view text, std::string* first, std::string* second) const;

 private:
  struct Step {
    enum class Kind { kForm, kReplace, kReplaceRegex, kPrepend } kind;
    const void* icu_form = nullptr;  // icu::Normalizer2, a singleton of ICU's
    bool compatible = false;         // it is NFKC or NFKD
    std::string pattern;
    std::string content;
    std::unique_ptr<RegexSplitter> regex;
  };
  // Writes the result to `*out` and returns true, or returns false when `text` is unchanged.
  static bool ApplyStep(const Step& step, absl::string_view text, std::string* out);

  std::vector<Step> steps_;
};

}  // namespace tandem::model::tokenizer_internal
