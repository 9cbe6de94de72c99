#include "common/model/tokenizer/streaming_detokenizer.h"

#include <algorithm>

#include "common/model/tokenizer/tokenizer_data.h"
#include "common/model/tokenizer/utf8.h"

namespace tandem::model {

using tokenizer_internal::DecoderSpec;
using tokenizer_internal::ScanUtf8;
using tokenizer_internal::Utf8Kind;

StreamingDetokenizer::StreamingDetokenizer(const Tokenizer* tokenizer, Options options)
    : data_(tokenizer->data_.get()), options_(options) {
  Restart();
}

void StreamingDetokenizer::Restart() {
  pending_.clear();
  first_token_ = !options_.continues_text;
  strip_left_remaining_ = options_.continues_text ? 0 : data_->decoder.strip_left;
}

std::string StreamingDetokenizer::Append(TokenId id) {
  std::string out;
  AppendTo(id, &out);
  return out;
}

void StreamingDetokenizer::AppendTo(TokenId id, std::string* out) {
  if (!data_->HasToken(id)) return;
  if (options_.skip_special_tokens && data_->special_ids.contains(id)) return;
  const absl::string_view text = data_->TokenText(id);
  const DecoderSpec& decoder = data_->decoder;
  if (decoder.byte_level) {
    AppendBytes(text, out);
    return;
  }
  const bool is_first = first_token_;
  first_token_ = false;
  if (decoder.byte_fallback) {
    if (const int byte = tokenizer_internal::ByteOfFallbackSpelling(text); byte >= 0) {
      pending_.push_back(static_cast<char>(byte));
      return;
    }
    EndByteRun(out);
  }
  AppendText(decoder.Spaced(std::string(text), is_first), out);
}

// Byte-level: hands out whole sequences and replacements, keeps an unfinished sequence.
void StreamingDetokenizer::AppendBytes(absl::string_view bytes, std::string* out) {
  std::string joined;
  if (!pending_.empty()) {
    joined = pending_ + std::string(bytes);
    bytes = joined;
  }
  // An unfinished sequence can only start in the last three bytes.
  size_t tail = bytes.size();
  for (size_t back = 1; back <= std::min<size_t>(3, bytes.size()); ++back) {
    const size_t begin = bytes.size() - back;
    if ((bytes[begin] & 0xC0) == 0x80) continue;
    if (ScanUtf8(bytes.substr(begin)).kind == Utf8Kind::kIncomplete) tail = begin;
    break;
  }
  tokenizer_internal::AppendLossyUtf8(bytes.substr(0, tail), out);
  pending_ = std::string(bytes.substr(tail));
}

void StreamingDetokenizer::AppendText(absl::string_view text, std::string* out) {
  while (strip_left_remaining_ > 0 && !text.empty()) {
    if (text[0] != ' ') {
      strip_left_remaining_ = 0;
      break;
    }
    text.remove_prefix(1);
    --strip_left_remaining_;
  }
  tokenizer_internal::AppendLossyUtf8(text, out);
}

// A run of byte tokens becomes text if the whole run is UTF-8; otherwise each byte becomes U+FFFD.
void StreamingDetokenizer::EndByteRun(std::string* out) {
  if (pending_.empty()) return;
  if (tokenizer_internal::IsValidUtf8(pending_)) {
    AppendText(pending_, out);
  } else {
    strip_left_remaining_ = 0;
    for (size_t i = 0; i < pending_.size(); ++i) {
      out->append(tokenizer_internal::kReplacementCharacter.data(),
                  tokenizer_internal::kReplacementCharacter.size());
    }
  }
  pending_.clear();
}

std::string StreamingDetokenizer::Flush() {
  std::string out;
  if (data_->decoder.byte_level) {
    tokenizer_internal::AppendLossyUtf8(pending_, &out);
  } else {
    EndByteRun(&out);
  }
  Restart();
  return out;
}

}  // namespace tandem::model
