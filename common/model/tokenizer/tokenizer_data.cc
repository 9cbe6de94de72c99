#include "common/model/tokenizer/tokenizer_data.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "common/base/status_macros.h"
#include "common/model/tokenizer/byte_level.h"
#include "common/model/tokenizer/utf8.h"

namespace tandem::model::tokenizer_internal {

std::string DecoderSpec::Spaced(std::string text, bool is_first) const {
  for (const auto& [pattern, content] : replaces) {
    absl::StrReplaceAll({{pattern, content}}, &text);
  }
  if (!metaspace_mark.empty()) {
    const bool drops = is_first && metaspace_drops_first;
    absl::StrReplaceAll({{metaspace_mark, drops ? "" : " "}}, &text);
  }
  return text;
}

void TokenizerData::AddToken(const AddedToken& token) {
  // A byte-level decoder reads every token's spelling as bytes where it can, added ones too.
  std::optional<std::string> bytes;
  if (decoder.byte_level) bytes = BytesOfSpelling(token.content);
  other_texts[token.id] = bytes.has_value() ? *bytes : token.content;
  other_ids.try_emplace(token.content, token.id);
  if (token.special) special_ids.insert(token.id);
  vocab_size = std::max(vocab_size, token.id + 1);
  if (!token.normalized) {
    raw_added.Add(token, token.content);
    return;
  }
  std::string first, second;
  normalized_added.Add(token, normalizer.Apply(token.content, &first, &second));
}

absl::string_view TokenizerData::TokenText(TokenId id) const {
  const auto it = other_texts.find(id);
  return it != other_texts.end() ? absl::string_view(it->second) : bpe.tokens().Text(id);
}

std::optional<TokenId> TokenizerData::FindToken(absl::string_view spelling) const {
  if (const auto it = other_ids.find(spelling); it != other_ids.end()) return it->second;
  TokenId id = kNoToken;
  if (!byte_level) {
    id = bpe.tokens().Find(spelling);
  } else if (const std::optional<std::string> bytes = BytesOfSpelling(spelling)) {
    id = bpe.tokens().Find(*bytes);
  }
  return id == kNoToken ? std::nullopt : std::optional<TokenId>(id);
}

int ByteOfFallbackSpelling(absl::string_view spelling) {
  if (spelling.size() != 6 || !absl::StartsWith(spelling, "<0x") || spelling[5] != '>') return -1;
  if (!absl::ascii_isxdigit(spelling[3]) || !absl::ascii_isxdigit(spelling[4])) return -1;
  return static_cast<uint8_t>(absl::HexStringToBytes(spelling.substr(3, 2))[0]);
}

std::string FallbackSpellingOfByte(int byte) { return absl::StrFormat("<0x%02X>", byte); }

absl::StatusOr<std::pair<absl::string_view, absl::string_view>> SplitMerge(absl::string_view merge,
                                                                           size_t index) {
  const size_t space = merge.find(' ');
  if (space == absl::string_view::npos || merge.find(' ', space + 1) != absl::string_view::npos) {
    return absl::InvalidArgumentError(absl::StrCat(
        "merge ", index, ": expected two strings, got \"", absl::CHexEscape(merge), "\""));
  }
  return std::make_pair(merge.substr(0, space), merge.substr(space + 1));
}

MergesBuilder::MergesBuilder(BpeModel* model, bool byte_level, size_t num_merges)
    : model_(model), byte_level_(byte_level) {
  pairs_.Reserve(num_merges);
  made_.reserve(num_merges);
}

absl::StatusOr<TokenId> MergesBuilder::Find(absl::string_view spelling, uint32_t rank) const {
  TokenId id = kNoToken;
  if (!byte_level_) {
    id = model_->tokens().Find(spelling);
  } else if (const std::optional<std::string> bytes = BytesOfSpelling(spelling)) {
    id = model_->tokens().Find(*bytes);
  }
  if (id != kNoToken) return id;
  return absl::InvalidArgumentError(absl::StrCat("merge ", rank, ": \"", absl::CHexEscape(spelling),
                                                 "\" is not a token of the vocabulary"));
}

absl::Status MergesBuilder::Add(absl::string_view left, absl::string_view right, uint32_t rank) {
  ASSIGN_OR_RETURN(const TokenId left_id, Find(left, rank));
  ASSIGN_OR_RETURN(const TokenId right_id, Find(right, rank));
  ASSIGN_OR_RETURN(const TokenId merged_id, Find(absl::StrCat(left, right), rank));
  pairs_.Set({left_id, right_id, rank, merged_id});
  made_.push_back(merged_id);
  merges_bytes_ |= ByteOfFallbackSpelling(left) >= 0 || ByteOfFallbackSpelling(right) >= 0;
  return absl::OkStatus();
}

void MergesBuilder::Finish(MarkCuts* cuts) {
  const BpeModel::Options& options = model_->options();
  cuts->enabled = !byte_level_ && !merges_bytes_ && !options.ignore_merges &&
                  model_->tokens().Find(kMetaspaceMark) != kNoToken;
  if (cuts->enabled) {
    for (const TokenId id : made_) NoteMarks(model_->tokens().Text(id), cuts);
  }
  JoinTable joins;
  // A merge of bytes' spellings makes a text that is not in the input.
  if (!merges_bytes_) {
    joins.Enable();
    for (const TokenId id : made_) joins.Note(model_->tokens().Text(id));
  }
  model_->SetMerges(std::move(pairs_), std::move(joins));
}

void NoteMarks(absl::string_view text, MarkCuts* cuts) {
  for (size_t found = text.find(kMetaspaceMark, 1); found < text.size();
       found = text.find(kMetaspaceMark, found + 1)) {
    size_t previous = found - 1;
    while (previous > 0 && (text[previous] & 0xC0) == 0x80) --previous;
    if (ScanUtf8(text.substr(previous)).kind != Utf8Kind::kValid) continue;
    int length = 0;
    cuts->unsafe_before.insert(DecodeUtf8(text.data() + previous, &length));
  }
}

}  // namespace tandem::model::tokenizer_internal
