// Implements LoadGguf (common/model/tokenizer/tokenizer_data.h). Reads GGUF's tokenizer.ggml.*
// arrays: "gpt2" (byte-level BPE with merges) and "llama" (SentencePiece BPE whose merges follow
// from the tokens' scores).
#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/tokenizer/byte_level.h"
#include "common/model/tokenizer/tokenizer_data.h"
#include "common/model/tokenizer/utf8.h"

namespace tandem::model::tokenizer_internal {
namespace {

// ggml's token types.
enum GgmlTokenType {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6
};

struct PreTokenizerName {
  absl::string_view name;
  ScannerKind scanner;
  bool is_llama3;  // takes whole words that are tokens as they are, and begins with BOS
  bool nfc;
};
constexpr PreTokenizerName kPreTokenizerNames[] = {
    {"gpt2", ScannerKind::kGpt2, false, false},
    {"gpt-2", ScannerKind::kGpt2, false, false},
    {"smollm", ScannerKind::kSmollm, false, false},
    {"starcoder", ScannerKind::kSmollm, false, false},
    {"llama-bpe", ScannerKind::kLlama3, true, false},
    {"llama3", ScannerKind::kLlama3, true, false},
    {"llama-v3", ScannerKind::kLlama3, true, false},
    {"qwen2", ScannerKind::kQwen2, false, true},
    {"deepseek-r1-qwen", ScannerKind::kQwen2, false, true},
};

absl::StatusOr<PreTokenizerName> FindPreTokenizer(absl::string_view name) {
  std::string known;
  for (const PreTokenizerName& entry : kPreTokenizerNames) {
    if (entry.name == name) return entry;
    absl::StrAppend(&known, known.empty() ? "" : ", ", entry.name);
  }
  return absl::UnimplementedError(
      absl::StrCat("tokenizer.ggml.pre \"", name, "\" is not supported; known are ", known));
}

class GgufLoader {
 public:
  explicit GgufLoader(const TokenizerSource& source)
      : source_(source), data_(std::make_unique<TokenizerData>()) {}

  absl::StatusOr<std::unique_ptr<TokenizerData>> Load() {
    RETURN_IF_ERROR(CheckArrays());
    if (source_.gguf_model == "gpt2") {
      RETURN_IF_ERROR(LoadByteLevel());
    } else if (source_.gguf_model == "llama") {
      RETURN_IF_ERROR(LoadSentencePiece());
    } else {
      return absl::UnimplementedError(absl::StrCat("tokenizer.ggml.model \"", source_.gguf_model,
                                                   "\" is not supported; known are gpt2, llama"));
    }
    RETURN_IF_ERROR(LoadSpecialIds());
    return std::move(data_);
  }

 private:
  absl::Status CheckArrays() const {
    const size_t n = source_.tokens.size();
    if (n == 0 || n > static_cast<size_t>(kTokenIdsMax)) {
      return absl::InvalidArgumentError(
          absl::StrCat("tokenizer.ggml.tokens has ", n, " entries, expected 1 to ", kTokenIdsMax));
    }
    if (!source_.token_types.empty() && source_.token_types.size() != n) {
      return absl::InvalidArgumentError(absl::StrCat("tokenizer.ggml.token_type has ",
                                                     source_.token_types.size(),
                                                     " entries, tokens has ", n));
    }
    return absl::OkStatus();
  }

  int32_t TypeOf(size_t id) const {
    return source_.token_types.empty() ? static_cast<int32_t>(kNormal) : source_.token_types[id];
  }

  // Unknown, control and user-defined tokens are matched in the raw text.
  bool IsAdded(size_t id) const {
    const int32_t type = TypeOf(id);
    return type == kUnknown || type == kControl || type == kUserDefined;
  }

  void AddOther(size_t id) {
    const std::string& text = source_.tokens[id];
    if (!IsAdded(id)) {
      data_->other_texts[static_cast<TokenId>(id)] = text;
      data_->other_ids.try_emplace(text, static_cast<TokenId>(id));
      return;
    }
    AddedToken token;
    token.id = static_cast<TokenId>(id);
    token.content = text;
    token.special = TypeOf(id) != kUserDefined;
    data_->AddToken(token);
  }

  void ReserveTokens() {
    const size_t bytes =
        std::accumulate(source_.tokens.begin(), source_.tokens.end(), size_t{0},
                        [](size_t sum, const std::string& text) { return sum + text.size(); });
    data_->bpe.tokens().Reserve(source_.tokens.size(), bytes);
    data_->vocab_size = static_cast<int32_t>(source_.tokens.size());
  }

  absl::Status LoadByteLevel() {
    ASSIGN_OR_RETURN(const PreTokenizerName pre, FindPreTokenizer(source_.gguf_pre));
    data_->byte_level = true;
    data_->decoder.byte_level = true;
    data_->pre_tokenizer = PreTokenizer(pre.scanner);
    if (pre.nfc) RETURN_IF_ERROR(data_->normalizer.AddForm(Normalizer::Form::kNfc));
    add_bos_default_ = pre.is_llama3;
    ReserveTokens();
    for (size_t id = 0; id < source_.tokens.size(); ++id) {
      const std::optional<std::string> bytes = BytesOfSpelling(source_.tokens[id]);
      if (IsAdded(id) || TypeOf(id) == kUnused || !bytes.has_value()) {
        AddOther(id);
      } else {
        data_->bpe.tokens().Add(*bytes, static_cast<TokenId>(id));
      }
    }
    BpeModel::Options options;
    options.byte_level = true;
    options.ignore_merges = pre.is_llama3;
    options.byte_ids.fill(kNoToken);
    data_->bpe.SetOptions(options);
    MergesBuilder merges(&data_->bpe, /*byte_level=*/true, source_.merges.size());
    for (size_t i = 0; i < source_.merges.size(); ++i) {
      ASSIGN_OR_RETURN(const auto sides, SplitMerge(source_.merges[i], i));
      RETURN_IF_ERROR(merges.Add(sides.first, sides.second, static_cast<uint32_t>(i)));
    }
    merges.Finish(&data_->mark_cuts);
    return absl::OkStatus();
  }

  absl::Status LoadSentencePiece() {
    if (source_.scores.size() != source_.tokens.size()) {
      return absl::InvalidArgumentError(absl::StrCat("tokenizer.ggml.scores has ",
                                                     source_.scores.size(), " entries, tokens has ",
                                                     source_.tokens.size()));
    }
    add_bos_default_ = true;
    data_->decoder.byte_fallback = true;
    data_->decoder.replaces.emplace_back(kMetaspaceMark, " ");
    if (source_.add_space_prefix.value_or(true)) {
      data_->normalizer.AddPrepend(kMetaspaceMark);
      data_->decoder.strip_left = 1;
    }
    data_->normalizer.AddReplace(" ", kMetaspaceMark);
    ReserveTokens();
    BpeModel::Options options;
    options.byte_fallback = true;
    options.fuse_unknown = true;
    options.unknown_id = source_.unknown_token_id.value_or(kNoToken);
    options.byte_ids.fill(kNoToken);
    for (size_t id = 0; id < source_.tokens.size(); ++id) {
      const int byte = TypeOf(id) == kByte ? ByteOfFallbackSpelling(source_.tokens[id]) : -1;
      if (byte >= 0) options.byte_ids[byte] = static_cast<TokenId>(id);
      if (TypeOf(id) == kNormal) {
        data_->bpe.tokens().Add(source_.tokens[id], static_cast<TokenId>(id));
      } else {
        AddOther(id);
      }
    }
    data_->bpe.SetOptions(options);
    return LoadScores();
  }

  // A text of more than one character, which merges can make.
  static bool IsMade(absl::string_view text) {
    return !text.empty() && Utf8Length(text[0]) < static_cast<int>(text.size());
  }

  absl::Status LoadScores() {
    const TokenTable& tokens = data_->bpe.tokens();
    std::vector<std::pair<float, TokenId>> made;
    std::vector<uint32_t> ranks(source_.tokens.size(), BpeModel::kNoMerge);
    for (TokenId id = 0; id < tokens.id_limit(); ++id) {
      if (!tokens.Has(id)) continue;
      if (std::isnan(source_.scores[id])) {
        return absl::InvalidArgumentError(
            absl::StrCat("tokenizer.ggml.scores: token ", id, " has no number"));
      }
      ranks[id] = 0;
      if (IsMade(tokens.Text(id))) made.emplace_back(-source_.scores[id], id);
    }
    std::sort(made.begin(), made.end());
    const auto tied = std::adjacent_find(
        made.begin(), made.end(), [](const auto& a, const auto& b) { return a.first == b.first; });
    if (tied != made.end() || static_cast<int64_t>(made.size()) > BpeModel::kRanksMax) {
      return LoadTiedScores(made);
    }
    data_->mark_cuts.enabled = tokens.Find(kMetaspaceMark) != kNoToken;
    for (size_t rank = 0; rank < made.size(); ++rank) {
      ranks[made[rank].second] = static_cast<uint32_t>(rank);
      NoteMarks(tokens.Text(made[rank].second), &data_->mark_cuts);
    }
    data_->bpe.SetRanks(std::move(ranks));
    return absl::OkStatus();
  }

  struct ScoredMerge {
    float negative_score;
    size_t left_chars;
    size_t right_chars;
    TokenId left;
    TokenId right;
  };

  // Scores that several tokens share order merges only together with the sides' lengths, so the
  // merges are written out, in the order that Hugging Face's converter gives them.
  absl::Status LoadTiedScores(const std::vector<std::pair<float, TokenId>>& made) {
    const TokenTable& tokens = data_->bpe.tokens();
    std::vector<std::pair<TokenId, float>> by_id;
    for (const auto& [negative_score, id] : made) by_id.emplace_back(id, negative_score);
    std::sort(by_id.begin(), by_id.end());
    std::vector<ScoredMerge> merges;
    for (const auto& [id, negative_score] : by_id) {
      const size_t first = merges.size();
      AppendSplits(tokens.Text(id), negative_score, &merges);
      std::sort(merges.begin() + first, merges.end(), [](const auto& a, const auto& b) {
        return std::pair(a.left, a.right) < std::pair(b.left, b.right);
      });
    }
    std::stable_sort(merges.begin(), merges.end(), [](const auto& a, const auto& b) {
      if (a.negative_score != b.negative_score) return a.negative_score < b.negative_score;
      if (a.left_chars != b.left_chars) return a.left_chars > b.left_chars;
      return a.right_chars > b.right_chars;
    });
    MergesBuilder builder(&data_->bpe, /*byte_level=*/false, merges.size());
    for (size_t rank = 0; rank < merges.size(); ++rank) {
      RETURN_IF_ERROR(builder.Add(tokens.Text(merges[rank].left), tokens.Text(merges[rank].right),
                                  static_cast<uint32_t>(rank)));
    }
    builder.Finish(&data_->mark_cuts);
    return absl::OkStatus();
  }

  // Every way to make `text` from two tokens.
  void AppendSplits(absl::string_view text, float negative_score,
                    std::vector<ScoredMerge>* merges) const {
    const TokenTable& tokens = data_->bpe.tokens();
    const auto starts_character = [](char c) { return (c & 0xC0) != 0x80; };
    const size_t chars = std::count_if(text.begin(), text.end(), starts_character);
    size_t left_chars = 1;
    for (size_t i = 1; i < text.size(); ++i) {
      if (!starts_character(text[i])) continue;
      const TokenId left = tokens.Find(text.substr(0, i));
      const TokenId right = tokens.Find(text.substr(i));
      if (left != kNoToken && right != kNoToken) {
        merges->push_back({negative_score, left_chars, chars - left_chars, left, right});
      }
      ++left_chars;
    }
  }

  absl::Status LoadSpecialIds() {
    const auto check = [&](absl::string_view name, const std::optional<int32_t>& id) {
      if (!id.has_value() || (*id >= 0 && *id < data_->vocab_size)) return absl::OkStatus();
      return absl::InvalidArgumentError(absl::StrCat("tokenizer.ggml.", name, "_token_id is ", *id,
                                                     ", expected 0 to ", data_->vocab_size - 1));
    };
    RETURN_IF_ERROR(check("bos", source_.bos_token_id));
    RETURN_IF_ERROR(check("eos", source_.eos_token_id));
    RETURN_IF_ERROR(check("unknown", source_.unknown_token_id));
    RETURN_IF_ERROR(check("padding", source_.padding_token_id));
    data_->bos_token_id = source_.bos_token_id;
    data_->eos_token_id = source_.eos_token_id;
    data_->unknown_token_id = source_.unknown_token_id;
    data_->padding_token_id = source_.padding_token_id;
    const auto add = [](absl::string_view name, const std::optional<int32_t>& id,
                        std::vector<TokenId>* ids) {
      if (!id.has_value()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "tokenizer.ggml.add_", name, "_token is true, but ", name, "_token_id is missing"));
      }
      ids->push_back(*id);
      return absl::OkStatus();
    };
    const bool adds_bos = source_.add_bos.value_or(add_bos_default_ && source_.bos_token_id);
    if (adds_bos) RETURN_IF_ERROR(add("bos", source_.bos_token_id, &data_->prefix_ids));
    if (source_.add_eos.value_or(false)) {
      RETURN_IF_ERROR(add("eos", source_.eos_token_id, &data_->suffix_ids));
    }
    return absl::OkStatus();
  }

  const TokenizerSource& source_;
  std::unique_ptr<TokenizerData> data_;
  bool add_bos_default_ = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<TokenizerData>> LoadGguf(const TokenizerSource& source) {
  return GgufLoader(source).Load();
}

}  // namespace tandem::model::tokenizer_internal
