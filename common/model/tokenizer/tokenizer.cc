#include "common/model/tokenizer/tokenizer.h"

#include <algorithm>
#include <array>
#include <utility>

#include "common/base/status_macros.h"
#include "common/model/tokenizer/byte_level.h"
#include "common/model/tokenizer/hash.h"
#include "common/model/tokenizer/streaming_detokenizer.h"
#include "common/model/tokenizer/tokenizer_data.h"
#include "common/model/tokenizer/utf8.h"

namespace tandem::model {

namespace internal = tokenizer_internal;

namespace {

using internal::AddedTokenMatcher;
using internal::EncodeScratch;
using internal::kMetaspaceMark;
using internal::kNoToken;
using internal::ScannerKind;
using internal::TokenizerData;
using internal::WordCache;

// One Encode call: the tokenizer, the scratch it borrowed, and where the ids go.
class EncodeCall {
 public:
  EncodeCall(const TokenizerData* data, EncodeScratch* scratch, std::vector<TokenId>* out)
      : data_(*data), scratch_(*scratch), out_(*out) {}

  // Encodes what lies between added tokens of the raw text. REQUIRES: well-formed UTF-8.
  void Segment(absl::string_view text, bool at_text_begin, bool parse_special) {
    const absl::string_view normal =
        data_.normalizer.Apply(text, &scratch_.normalized[0], &scratch_.normalized[1]);
    if (data_.normalized_added.empty()) {
      Words(normal, at_text_begin);
      return;
    }
    AddedTokenMatcher::Walk walk(&data_.normalized_added, normal, parse_special);
    AddedTokenMatcher::Piece piece;
    while (walk.Next(&piece)) {
      if (piece.id != kNoToken) {
        out_.push_back(piece.id);
      } else {
        Words(normal.substr(piece.begin, piece.end - piece.begin),
              at_text_begin && piece.begin == 0);
      }
    }
  }

 private:
  void Words(absl::string_view text, bool at_text_begin) {
    if (text.empty()) return;
    const internal::ScanWordFn scan = internal::WordScannerOf(data_.pre_tokenizer.scanner());
    if (scan != nullptr) return ScannedWords(text, scan);
    data_.pre_tokenizer.Apply(text, at_text_begin, &scratch_.arena, &scratch_.words);
    for (const absl::string_view word : scratch_.words) {
      data_.mark_cuts.enabled ? WordsAtMarks(word) : Word(word);
    }
  }

  // Prefetches the cache entries of the next few words. An entry is mostly not in a nearby cache,
  // and it arrives while earlier words are encoded.
  void ScannedWords(absl::string_view text, internal::ScanWordFn scan) {
    constexpr size_t kAhead = 4;
    std::array<absl::string_view, kAhead> words;
    std::array<WordCache::Entry*, kAhead> entries;
    const char* const end = text.data() + text.size();
    size_t found = 0, done = 0;
    for (const char* p = text.data(); p < end;) {
      if (found - done == kAhead) {
        Word(words[done % kAhead], entries[done % kAhead]);
        ++done;
      }
      const char* const word_end = scan(p, end);
      words[found % kAhead] = absl::string_view(p, word_end - p);
      entries[found % kAhead] = EntryOf(words[found % kAhead]);
      if (entries[found % kAhead] != nullptr) __builtin_prefetch(entries[found % kAhead]);
      ++found;
      p = word_end;
    }
    for (; done < found; ++done) Word(words[done % kAhead], entries[done % kAhead]);
  }

  // Cuts before marks where no merge could cross.
  void WordsAtMarks(absl::string_view text) {
    size_t begin = 0;
    for (size_t found = text.find(kMetaspaceMark, 1); found != absl::string_view::npos;
         found = text.find(kMetaspaceMark, found + kMetaspaceMark.size())) {
      if (!IsSafeCut(text, found)) continue;
      Word(text.substr(begin, found - begin));
      begin = found;
    }
    Word(text.substr(begin));
  }

  bool IsSafeCut(absl::string_view text, size_t mark) const {
    if (data_.mark_cuts.unsafe_before.empty()) return true;
    size_t previous = mark - 1;
    while ((text[previous] & 0xC0) == 0x80) --previous;
    int length = 0;
    return !data_.mark_cuts.unsafe_before.contains(
        internal::DecodeUtf8(text.data() + previous, &length));
  }

  // Where the cache would hold the word; null when words of its length are not held.
  WordCache::Entry* EntryOf(absl::string_view word) {
    if (word.size() > WordCache::kMaxWordBytes) return nullptr;
    return &scratch_.cache.At(internal::HashBytes(word));
  }

  void Word(absl::string_view word) { Word(word, EntryOf(word)); }

  void Word(absl::string_view word, WordCache::Entry* entry) {
    if (entry == nullptr) {
      data_.bpe.Encode(word, &scratch_.bpe, &out_);
      return;
    }
    if (entry->Holds(word)) {
      out_.insert(out_.end(), entry->ids, entry->ids + entry->num_ids);
      return;
    }
    const size_t begin = out_.size();
    data_.bpe.Encode(word, &scratch_.bpe, &out_);
    WordCache::Store(word, absl::MakeConstSpan(out_).subspan(begin), entry);
  }

  const TokenizerData& data_;
  EncodeScratch& scratch_;
  std::vector<TokenId>& out_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Create(const TokenizerSource& source) {
  if (source.tokenizer_json.empty() && source.gguf_model.empty() && source.tokens.empty()) {
    return absl::InvalidArgumentError(
        "the model brings no tokenizer: expected tokenizer.json in its folder (transformers makes "
        "it from tokenizer.model: AutoTokenizer.from_pretrained, save_pretrained), or "
        "tokenizer.ggml.model in its GGUF file");
  }
  ASSIGN_OR_RETURN(std::unique_ptr<TokenizerData> data, source.tokenizer_json.empty()
                                                            ? internal::LoadGguf(source)
                                                            : internal::LoadJson(source));
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(data)));
}

Tokenizer::Tokenizer(std::unique_ptr<TokenizerData> data) : data_(std::move(data)) {}
Tokenizer::~Tokenizer() = default;

std::vector<TokenId> Tokenizer::Encode(absl::string_view text, EncodeOptions options) const {
  std::string repaired;
  if (!internal::IsValidUtf8(text)) {
    internal::AppendLossyUtf8(text, &repaired);
    text = repaired;
  }
  std::vector<TokenId> out;
  // English text has about four bytes a token.
  out.reserve(text.size() / 4 + 16);
  if (options.add_special_tokens) {
    out.insert(out.end(), data_->prefix_ids.begin(), data_->prefix_ids.end());
  }
  std::unique_ptr<EncodeScratch> scratch = data_->scratch_pool.Take();
  EncodeCall call(data_.get(), scratch.get(), &out);
  AddedTokenMatcher::Walk walk(&data_->raw_added, text, options.parse_special);
  AddedTokenMatcher::Piece piece;
  while (walk.Next(&piece)) {
    if (piece.id != kNoToken) {
      out.push_back(piece.id);
    } else {
      call.Segment(text.substr(piece.begin, piece.end - piece.begin), piece.begin == 0,
                   options.parse_special);
    }
  }
  data_->scratch_pool.Return(std::move(scratch));
  if (options.add_special_tokens) {
    out.insert(out.end(), data_->suffix_ids.begin(), data_->suffix_ids.end());
  }
  return out;
}

std::string Tokenizer::Decode(absl::Span<const TokenId> ids, bool skip_special_tokens) const {
  StreamingDetokenizer detokenizer(this, {.skip_special_tokens = skip_special_tokens});
  std::string text;
  for (const TokenId id : ids) detokenizer.AppendTo(id, &text);
  return text + detokenizer.Flush();
}

std::optional<TokenId> Tokenizer::FindToken(absl::string_view text) const {
  return data_->FindToken(text);
}

std::string Tokenizer::TokenBytes(TokenId id) const {
  const absl::string_view text = data_->TokenText(id);
  const internal::DecoderSpec& decoder = data_->decoder;
  if (decoder.byte_level) return std::string(text);
  if (decoder.byte_fallback) {
    if (const int byte = internal::ByteOfFallbackSpelling(text); byte >= 0) {
      return std::string(1, static_cast<char>(byte));
    }
  }
  return decoder.Spaced(std::string(text), /*is_first=*/false);
}

std::string Tokenizer::TokenText(TokenId id) const {
  std::string text;
  internal::AppendLossyUtf8(TokenBytes(id), &text);
  return text;
}

bool Tokenizer::IsSpecial(TokenId id) const { return data_->special_ids.contains(id); }
int32_t Tokenizer::vocab_size() const { return data_->vocab_size; }
std::optional<TokenId> Tokenizer::bos_token_id() const { return data_->bos_token_id; }
std::optional<TokenId> Tokenizer::eos_token_id() const { return data_->eos_token_id; }
std::optional<TokenId> Tokenizer::unknown_token_id() const { return data_->unknown_token_id; }
std::optional<TokenId> Tokenizer::padding_token_id() const { return data_->padding_token_id; }
absl::Span<const TokenId> Tokenizer::prefix_ids() const { return data_->prefix_ids; }
absl::Span<const TokenId> Tokenizer::suffix_ids() const { return data_->suffix_ids; }

}  // namespace tandem::model
