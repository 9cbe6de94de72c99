#include "common/model/tokenizer/mark_order.h"

#include <unicode/normalizer2.h>
#include <unicode/unistr.h>
#include <unicode/utf8.h>

#include <array>
#include <cstdint>

#include "absl/strings/str_cat.h"

namespace tandem::model::tokenizer_internal {
namespace {

// The code point at `at`, which moves behind it.
UChar32 Next(absl::string_view text, size_t& at) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
  UChar32 c = 0;
  U8_NEXT(bytes, at, text.size(), c);
  return c;
}

// No mark lies in these ranges, where most text of more than one byte a character does.
bool IsPlain(UChar32 c) { return c < 0x300 || (c >= 0x3400 && c < 0xA66F); }

class Orderer {
 public:
  Orderer(const icu::Normalizer2& form, std::string* out) : form_(form), out_(*out) {}

  // Appends the decomposition of `text`, marks in order.
  void Append(absl::string_view text) {
    icu::UnicodeString decomposed;
    for (size_t at = 0; at < text.size();) {
      const UChar32 c = Next(text, at);
      if (!form_.getDecomposition(c, decomposed)) {
        Put(c);
        continue;
      }
      for (int32_t i = 0; i < decomposed.length(); i = decomposed.moveIndex32(i, 1))
        Put(decomposed.char32At(i));
    }
    PutMarks();
  }

 private:
  void Put(UChar32 c) {
    const uint8_t combining_class = form_.getCombiningClass(c);
    if (combining_class == 0) PutMarks();
    std::string& place = combining_class == 0 ? out_ : marks_[combining_class];
    std::array<char, U8_MAX_LENGTH> bytes;
    size_t size = 0;
    U8_APPEND_UNSAFE(bytes.data(), size, c);
    place.append(bytes.data(), size);
    has_marks_ = has_marks_ || combining_class != 0;
  }
  void PutMarks() {
    if (!has_marks_) return;
    for (std::string& marks : marks_) {
      out_ += marks;
      marks.clear();
    }
    has_marks_ = false;
  }

  const icu::Normalizer2& form_;
  std::string& out_;
  std::array<std::string, 256> marks_;  // since the last other character, by combining class
  bool has_marks_ = false;
};

}  // namespace

bool OrderLongMarkRuns(absl::string_view text, bool compatible, std::string* out) {
  UErrorCode error = U_ZERO_ERROR;
  const icu::Normalizer2* form = compatible ? icu::Normalizer2::getNFKDInstance(error)
                                            : icu::Normalizer2::getNFDInstance(error);
  if (U_FAILURE(error) || form == nullptr) return false;
  out->clear();
  size_t copied = 0;  // of `text`
  // The run that ends before `at`: marks, and the character before them.
  size_t begin = 0;
  int points = 0;
  Orderer orderer(*form, out);
  const auto end_run = [&](size_t end) {
    if (points <= kLongMarkRun) return;
    absl::StrAppend(out, text.substr(copied, begin - copied));
    orderer.Append(text.substr(begin, end - begin));
    copied = end;
  };
  for (size_t at = 0; at < text.size();) {
    const size_t before = at;
    const UChar32 c = Next(text, at);
    if (IsPlain(c) || form->hasBoundaryBefore(c)) {
      end_run(before);
      begin = before;
      points = 0;
    }
    ++points;
  }
  end_run(text.size());
  if (copied == 0) return false;
  absl::StrAppend(out, text.substr(copied));
  return true;
}

}  // namespace tandem::model::tokenizer_internal
