#include "common/model/tokenizer/normalizer.h"

#include <unicode/bytestream.h>
#include <unicode/normalizer2.h>

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/tokenizer/mark_order.h"

namespace tandem::model::tokenizer_internal {
namespace {

bool IsAscii(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c & 0x80) == 0; });
}

}  // namespace

absl::Status Normalizer::AddForm(Form form) {
  UErrorCode error = U_ZERO_ERROR;
  const icu::Normalizer2* normalizer = nullptr;
  switch (form) {
    case Form::kNfc:
      normalizer = icu::Normalizer2::getNFCInstance(error);
      break;
    case Form::kNfd:
      normalizer = icu::Normalizer2::getNFDInstance(error);
      break;
    case Form::kNfkc:
      normalizer = icu::Normalizer2::getNFKCInstance(error);
      break;
    case Form::kNfkd:
      normalizer = icu::Normalizer2::getNFKDInstance(error);
      break;
  }
  if (U_FAILURE(error) || normalizer == nullptr) {
    return absl::InternalError(absl::StrCat("ICU has no normaliser: ", u_errorName(error)));
  }
  Step step{Step::Kind::kForm};
  step.icu_form = normalizer;
  step.compatible = form == Form::kNfkc || form == Form::kNfkd;
  steps_.push_back(std::move(step));
  return absl::OkStatus();
}

void Normalizer::AddReplace(absl::string_view pattern, absl::string_view content) {
  Step step{Step::Kind::kReplace};
  step.pattern = std::string(pattern);
  step.content = std::string(content);
  steps_.push_back(std::move(step));
}

void Normalizer::AddReplaceRegex(RegexSplitter regex, absl::string_view content) {
  Step step{Step::Kind::kReplaceRegex};
  step.regex = std::make_unique<RegexSplitter>(std::move(regex));
  step.content = std::string(content);
  steps_.push_back(std::move(step));
}

void Normalizer::AddPrepend(absl::string_view content) {
  Step step{Step::Kind::kPrepend};
  step.content = std::string(content);
  steps_.push_back(std::move(step));
}

bool Normalizer::ApplyStep(const Step& step, absl::string_view text, std::string* out) {
  out->clear();
  switch (step.kind) {
    case Step::Kind::kForm: {
      if (IsAscii(text)) return false;
      const auto* normalizer = static_cast<const icu::Normalizer2*>(step.icu_form);
      std::string ordered;
      if (text.size() > kLongMarkRun && OrderLongMarkRuns(text, step.compatible, &ordered))
        text = ordered;
      UErrorCode error = U_ZERO_ERROR;
      icu::StringByteSink<std::string> sink(out);
      const icu::StringPiece piece(text.data(), static_cast<int32_t>(text.size()));
      normalizer->normalizeUTF8(0, piece, sink, nullptr, error);
      return !U_FAILURE(error);
    }
    case Step::Kind::kReplace: {
      size_t begin = 0;
      size_t found = text.find(step.pattern);
      if (found == absl::string_view::npos) return false;
      for (; found != absl::string_view::npos; found = text.find(step.pattern, begin)) {
        out->append(text.data() + begin, found - begin);
        out->append(step.content);
        begin = found + step.pattern.size();
      }
      out->append(text.data() + begin, text.size() - begin);
      return true;
    }
    case Step::Kind::kReplaceRegex: {
      std::vector<SplitSpan> spans;
      step.regex->Find(text, &spans);
      for (const SplitSpan& span : spans) {
        const absl::string_view piece = text.substr(span.begin, span.end - span.begin);
        absl::StrAppend(out, span.is_match ? absl::string_view(step.content) : piece);
      }
      return true;
    }
    case Step::Kind::kPrepend:
      if (text.empty()) return false;
      absl::StrAppend(out, step.content, text);
      return true;
  }
  return false;
}

absl::string_view Normalizer::Apply(absl::string_view text, std::string* first,
                                    std::string* second) const {
  for (const Step& step : steps_) {
    if (!ApplyStep(step, text, first)) continue;
    text = *first;
    std::swap(first, second);
  }
  return text;
}

}  // namespace tandem::model::tokenizer_internal
