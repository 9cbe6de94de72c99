// Splits text with a pattern, as Hugging Face's Split pre-tokeniser and Replace normaliser do.
// PCRE2 with JIT replaces Oniguruma; patterns are rewritten where the two differ (onig_pattern.h).
// \p{...} follows the Unicode version of the PCRE2 library. Thread safety: const methods from any
// thread. Owner: the PreTokenizer or Normalizer that has the pattern.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

struct pcre2_real_code_8;

namespace tandem::model::tokenizer_internal {

enum class SplitBehavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

struct SplitSpan {
  size_t begin;
  size_t end;
  bool is_match;
};

// Joins or drops neighbouring spans as `behavior` says; empty spans are dropped.
std::vector<SplitSpan> ApplySplitBehavior(absl::Span<const SplitSpan> spans,
                                          SplitBehavior behavior);

class RegexSplitter {
 public:
  // Errors: kInvalidArgument for a pattern that does not compile, with PCRE2's message;
  // kUnimplemented for one that matches the empty string, or has what cannot be rewritten.
  static absl::StatusOr<RegexSplitter> Create(absl::string_view pattern);

  // Appends matches and what lies between them, in order, covering all of `text`. Past the bound on
  // a match (a million steps, or four a byte) the rest of the text is one span without a match.
  // REQUIRES: well-formed UTF-8.
  void Find(absl::string_view text, std::vector<SplitSpan>* spans) const;

 private:
  struct CodeDeleter {
    void operator()(pcre2_real_code_8* code) const;
  };
  explicit RegexSplitter(std::unique_ptr<pcre2_real_code_8, CodeDeleter> code)
      : code_(std::move(code)) {}

  std::unique_ptr<pcre2_real_code_8, CodeDeleter> code_;
};

}  // namespace tandem::model::tokenizer_internal
