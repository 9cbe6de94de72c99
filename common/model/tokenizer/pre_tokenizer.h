// Cuts normalised text into the words that BPE encodes separately, either with a hand-written
// scanner (word_scanner.h) or with the list of steps that a tokenizer.json names.
// Thread safety: const methods from any thread. Owner: TokenizerData.
#pragma once

#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "common/model/tokenizer/regex_splitter.h"
#include "common/model/tokenizer/word_scanner.h"

namespace tandem::model::tokenizer_internal {

// What a Metaspace step puts before a piece that does not begin with its mark.
enum class PrependScheme { kNever, kFirst, kAlways };

struct PreTokenizerStep {
  enum class Kind { kDigits, kSplitRegex, kSplitString, kByteLevel, kMetaspace } kind;
  bool individual_digits = false;              // kDigits
  std::shared_ptr<const RegexSplitter> regex;  // kSplitRegex; shared by copies of the step
  std::string pattern;                         // kSplitRegex, kSplitString
  SplitBehavior behavior = SplitBehavior::kIsolated;
  bool invert = false;
  bool add_prefix_space = false;  // kByteLevel
  bool use_regex = false;         // kByteLevel: kGpt2Pattern
  std::string mark;               // kMetaspace, usually U+2581
  PrependScheme prepend = PrependScheme::kNever;
  bool split = true;  // kMetaspace: before each mark
};

class PreTokenizer {
 public:
  explicit PreTokenizer(ScannerKind scanner = ScannerKind::kNone) : scanner_(scanner) {}
  // Recognises the step lists that a scanner equals.
  explicit PreTokenizer(std::vector<PreTokenizerStep> steps);

  // kNone: use Apply.
  ScannerKind scanner() const { return scanner_; }

  // Cuts `text` into `*words`, views of `text` or of strings in `*arena`; both are cleared first.
  // `at_text_begin`: nothing of the whole input lies before `text`.
  // REQUIRES: well-formed UTF-8, not empty.
  void Apply(absl::string_view text, bool at_text_begin, std::deque<std::string>* arena,
             std::vector<absl::string_view>* words) const;

 private:
  ScannerKind scanner_ = ScannerKind::kNone;
  std::vector<PreTokenizerStep> steps_;
};

}  // namespace tandem::model::tokenizer_internal
