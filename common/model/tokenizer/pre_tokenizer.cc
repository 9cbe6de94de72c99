#include "common/model/tokenizer/pre_tokenizer.h"

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/model/tokenizer/unicode_class.h"
#include "common/model/tokenizer/utf8.h"

namespace tandem::model::tokenizer_internal {
namespace {

using Step = PreTokenizerStep;
using Words = std::vector<absl::string_view>;

bool IsPlainByteLevel(const Step& step, bool use_regex) {
  return step.kind == Step::Kind::kByteLevel && step.use_regex == use_regex &&
         !step.add_prefix_space;
}

ScannerKind Recognise(const std::vector<Step>& steps) {
  if (steps.size() == 1 && IsPlainByteLevel(steps[0], true)) return ScannerKind::kGpt2;
  if (steps.size() != 2) return ScannerKind::kNone;
  const Step& first = steps[0];
  if (first.kind == Step::Kind::kDigits && first.individual_digits &&
      IsPlainByteLevel(steps[1], true)) {
    return ScannerKind::kSmollm;
  }
  const bool is_split = first.kind == Step::Kind::kSplitRegex && !first.invert &&
                        first.behavior == SplitBehavior::kIsolated &&
                        IsPlainByteLevel(steps[1], false);
  if (is_split && first.pattern == kLlama3Pattern) return ScannerKind::kLlama3;
  if (is_split && first.pattern == kQwen2Pattern) return ScannerKind::kQwen2;
  return ScannerKind::kNone;
}

void FindDigits(absl::string_view text, std::vector<SplitSpan>* spans) {
  size_t begin = 0;
  for (size_t i = 0; i < text.size();) {
    int length = 0;
    const UnicodeClass code_class = ClassOf(DecodeUtf8(text.data() + i, &length));
    if (code_class == kNumber || code_class == kDigitsOnly) {
      if (begin < i) spans->push_back({begin, i, false});
      spans->push_back({i, i + length, true});
      begin = i + length;
    }
    i += length;
  }
  if (begin < text.size()) spans->push_back({begin, text.size(), false});
}

void FindString(absl::string_view text, absl::string_view pattern, std::vector<SplitSpan>* spans) {
  size_t begin = 0;
  for (size_t found = text.find(pattern); found != absl::string_view::npos;
       found = text.find(pattern, begin)) {
    if (begin < found) spans->push_back({begin, found, false});
    begin = found + pattern.size();
    spans->push_back({found, begin, true});
  }
  if (begin < text.size()) spans->push_back({begin, text.size(), false});
}

void Cut(absl::string_view text, std::vector<SplitSpan> spans, SplitBehavior behavior, bool invert,
         Words* words) {
  for (SplitSpan& span : spans) span.is_match ^= invert;
  for (const SplitSpan& span : ApplySplitBehavior(spans, behavior)) {
    words->push_back(text.substr(span.begin, span.end - span.begin));
  }
}

absl::string_view Keep(std::string text, std::deque<std::string>* arena) {
  arena->push_back(std::move(text));
  return arena->back();
}

void ApplyByteLevel(const Step& step, absl::string_view text, std::deque<std::string>* arena,
                    Words* words) {
  if (step.add_prefix_space && !absl::StartsWith(text, " ")) {
    text = Keep(absl::StrCat(" ", text), arena);
  }
  if (!step.use_regex) {
    words->push_back(text);
    return;
  }
  const ScanWordFn scan = WordScannerOf(ScannerKind::kGpt2);
  const char* const end = text.data() + text.size();
  for (const char* p = text.data(); p < end;) {
    const char* const word_end = scan(p, end);
    words->emplace_back(p, word_end - p);
    p = word_end;
  }
}

void ApplyMetaspace(const Step& step, absl::string_view text, bool at_text_begin,
                    std::deque<std::string>* arena, Words* words) {
  std::string marked = absl::StrReplaceAll(text, {{" ", step.mark}});
  const bool prepends = step.prepend == PrependScheme::kAlways ||
                        (step.prepend == PrependScheme::kFirst && at_text_begin);
  if (prepends && !absl::StartsWith(marked, step.mark)) marked.insert(0, step.mark);
  text = Keep(std::move(marked), arena);
  if (!step.split) {
    words->push_back(text);
    return;
  }
  std::vector<SplitSpan> spans;
  FindString(text, step.mark, &spans);
  Cut(text, std::move(spans), SplitBehavior::kMergedWithNext, false, words);
}

void ApplyStep(const Step& step, absl::string_view text, bool at_text_begin,
               std::deque<std::string>* arena, Words* words) {
  std::vector<SplitSpan> spans;
  switch (step.kind) {
    case Step::Kind::kDigits:
      FindDigits(text, &spans);
      Cut(text, std::move(spans),
          step.individual_digits ? SplitBehavior::kIsolated : SplitBehavior::kContiguous, false,
          words);
      return;
    case Step::Kind::kSplitRegex:
      step.regex->Find(text, &spans);
      Cut(text, std::move(spans), step.behavior, step.invert, words);
      return;
    case Step::Kind::kSplitString:
      FindString(text, step.pattern, &spans);
      Cut(text, std::move(spans), step.behavior, step.invert, words);
      return;
    case Step::Kind::kByteLevel:
      ApplyByteLevel(step, text, arena, words);
      return;
    case Step::Kind::kMetaspace:
      ApplyMetaspace(step, text, at_text_begin, arena, words);
      return;
  }
}

}  // namespace

PreTokenizer::PreTokenizer(std::vector<PreTokenizerStep> steps)
    : scanner_(Recognise(steps)), steps_(std::move(steps)) {}

void PreTokenizer::Apply(absl::string_view text, bool at_text_begin, std::deque<std::string>* arena,
                         std::vector<absl::string_view>* words) const {
  arena->clear();
  words->assign(1, text);
  Words next;
  for (const Step& step : steps_) {
    next.clear();
    for (size_t i = 0; i < words->size(); ++i) {
      ApplyStep(step, (*words)[i], at_text_begin && i == 0, arena, &next);
    }
    words->swap(next);
  }
}

}  // namespace tandem::model::tokenizer_internal
