#include "common/model/tokenizer/json_loader.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status_macros.h"
#include "common/model/json_reading.h"
#include "common/model/tokenizer/byte_level.h"

namespace tandem::model::tokenizer_internal {

const Json* FindField(const Json& node, absl::string_view name) {
  if (!node.is_object()) return nullptr;
  const auto it = node.find(std::string(name));
  return it == node.end() || it->is_null() ? nullptr : &*it;
}

absl::StatusOr<std::string> StringField(const Json& node, absl::string_view name,
                                        absl::string_view where) {
  const Json* field = FindField(node, name);
  if (field == nullptr || !field->is_string()) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokenizer.json: ", where, ".", name, ": expected a string"));
  }
  return field->get_ref<const std::string&>();
}

absl::StatusOr<bool> BoolField(const Json& node, absl::string_view name, bool otherwise,
                               absl::string_view where) {
  const Json* field = FindField(node, name);
  if (field == nullptr) return otherwise;
  if (!field->is_boolean()) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokenizer.json: ", where, ".", name, ": expected true or false"));
  }
  return field->get<bool>();
}

absl::StatusOr<TokenId> TokenIdField(const Json& node, absl::string_view where) {
  if (!node.is_number_unsigned() || node.get<uint64_t>() >= uint64_t{kTokenIdsMax}) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokenizer.json: ", where, ": expected a token id below ", kTokenIdsMax));
  }
  return node.get<TokenId>();
}

namespace {

absl::StatusOr<Json> Parse(const std::string& text, absl::string_view file) {
  if (NestsTooDeep(text)) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": nests deeper than ", kJsonDepthMax, " levels"));
  }
  try {
    return Json::parse(text);
  } catch (const Json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": ", error.what()));
  }
}

class JsonLoader {
 public:
  explicit JsonLoader(const Json& root) : root_(root), data_(std::make_unique<TokenizerData>()) {}

  absl::StatusOr<std::unique_ptr<TokenizerData>> Load(const std::string& config_json) {
    RETURN_IF_ERROR(LoadComponents());
    const Json* model = FindField(root_, "model");
    if (model == nullptr) {
      return absl::InvalidArgumentError("tokenizer.json: model is missing");
    }
    RETURN_IF_ERROR(LoadVocabulary(*model));
    RETURN_IF_ERROR(LoadModelOptions(*model));
    RETURN_IF_ERROR(LoadMerges(*model));
    RETURN_IF_ERROR(LoadAddedTokens());
    if (const Json* post = FindField(root_, "post_processor"); post != nullptr) {
      RETURN_IF_ERROR(LoadPostProcessor(*post, 0));
    }
    if (!config_json.empty()) RETURN_IF_ERROR(LoadConfig(config_json));
    return std::move(data_);
  }

 private:
  absl::Status LoadComponents() {
    if (const Json* node = FindField(root_, "normalizer"); node != nullptr) {
      RETURN_IF_ERROR(ReadNormalizer(*node, &data_->normalizer));
    }
    if (const Json* node = FindField(root_, "pre_tokenizer"); node != nullptr) {
      ASSIGN_OR_RETURN(std::vector<PreTokenizerStep> steps, ReadPreTokenizer(*node));
      data_->byte_level = !steps.empty() && steps.back().kind == PreTokenizerStep::Kind::kByteLevel;
      data_->pre_tokenizer = PreTokenizer(std::move(steps));
    }
    const Json* decoder = FindField(root_, "decoder");
    if (decoder == nullptr) {
      return absl::UnimplementedError("tokenizer.json: a tokenizer without decoder");
    }
    ASSIGN_OR_RETURN(data_->decoder, ReadDecoder(*decoder));
    if (data_->decoder.byte_level != data_->byte_level) {
      return absl::UnimplementedError(
          "tokenizer.json: ByteLevel as only one of pre_tokenizer and decoder is not supported");
    }
    return absl::OkStatus();
  }

  absl::Status LoadVocabulary(const Json& model) {
    if (FindField(model, "type") != nullptr) {
      ASSIGN_OR_RETURN(const std::string type, StringField(model, "type", "model"));
      if (type != "BPE") {
        return absl::UnimplementedError(
            absl::StrCat("tokenizer.json: model \"", type, "\" is not supported; known is BPE"));
      }
    }
    const Json* vocab = FindField(model, "vocab");
    if (vocab == nullptr || !vocab->is_object()) {
      return absl::InvalidArgumentError("tokenizer.json: model.vocab: expected an object");
    }
    size_t text_bytes = 0;
    for (const auto& item : vocab->items()) text_bytes += item.key().size();
    TokenTable& tokens = data_->bpe.tokens();
    tokens.Reserve(vocab->size(), text_bytes);
    for (const auto& item : vocab->items()) {
      ASSIGN_OR_RETURN(const TokenId id,
                       TokenIdField(item.value(), absl::StrCat("model.vocab ", item.key())));
      if (data_->HasToken(id)) {
        return absl::InvalidArgumentError(absl::StrCat("tokenizer.json: model.vocab: id ", id,
                                                       " has two tokens, one is ", item.key()));
      }
      data_->vocab_size = std::max(data_->vocab_size, id + 1);
      std::optional<std::string> bytes = item.key();
      if (data_->byte_level) bytes = BytesOfSpelling(item.key());
      if (bytes.has_value()) {
        tokens.Add(*bytes, id);
      } else {
        data_->other_texts[id] = item.key();
        data_->other_ids.try_emplace(item.key(), id);
      }
    }
    return absl::OkStatus();
  }

  absl::Status LoadModelOptions(const Json& model) {
    for (const absl::string_view name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      const Json* field = FindField(model, name);
      if (field != nullptr && *field != "") {
        return absl::UnimplementedError(
            absl::StrCat("tokenizer.json: model.", name, " is not supported"));
      }
    }
    if (const Json* dropout = FindField(model, "dropout"); dropout != nullptr && *dropout != 0.0) {
      return absl::UnimplementedError("tokenizer.json: model.dropout is not supported");
    }
    BpeModel::Options options;
    options.byte_level = data_->byte_level;
    ASSIGN_OR_RETURN(options.ignore_merges, BoolField(model, "ignore_merges", false, "model"));
    ASSIGN_OR_RETURN(options.fuse_unknown, BoolField(model, "fuse_unk", false, "model"));
    ASSIGN_OR_RETURN(options.byte_fallback, BoolField(model, "byte_fallback", false, "model"));
    if (options.byte_fallback && options.byte_level) {
      return absl::UnimplementedError(
          "tokenizer.json: model.byte_fallback with a ByteLevel pre_tokenizer is not supported");
    }
    if (FindField(model, "unk_token") != nullptr) {
      ASSIGN_OR_RETURN(const std::string unknown, StringField(model, "unk_token", "model"));
      data_->unknown_token_id = data_->FindToken(unknown);
      if (!data_->unknown_token_id.has_value()) {
        return absl::InvalidArgumentError(absl::StrCat("tokenizer.json: model.unk_token \"",
                                                       unknown, "\" is not in the vocabulary"));
      }
      options.unknown_id = *data_->unknown_token_id;
    }
    for (int byte = 0; byte < 256; ++byte) {
      options.byte_ids[byte] = data_->bpe.tokens().Find(FallbackSpellingOfByte(byte));
    }
    data_->bpe.SetOptions(options);
    return absl::OkStatus();
  }

  absl::Status LoadMerges(const Json& model) {
    const Json* merges = FindField(model, "merges");
    if (merges == nullptr || !merges->is_array()) {
      return absl::InvalidArgumentError("tokenizer.json: model.merges: expected a list");
    }
    MergesBuilder builder(&data_->bpe, data_->byte_level, merges->size());
    uint32_t rank = 0;
    for (const Json& merge : *merges) {
      absl::string_view left, right;
      if (merge.is_string()) {
        ASSIGN_OR_RETURN(const auto sides, SplitMerge(merge.get_ref<const std::string&>(), rank));
        left = sides.first;
        right = sides.second;
      } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
                 merge[1].is_string()) {
        left = merge[0].get_ref<const std::string&>();
        right = merge[1].get_ref<const std::string&>();
      } else {
        return absl::InvalidArgumentError(
            absl::StrCat("tokenizer.json: merge ", rank, ": expected two strings"));
      }
      RETURN_IF_ERROR(builder.Add(left, right, rank++));
    }
    builder.Finish(&data_->mark_cuts);
    return absl::OkStatus();
  }

  absl::Status LoadAddedTokens() {
    const Json* list = FindField(root_, "added_tokens");
    if (list == nullptr) return absl::OkStatus();
    if (!list->is_array()) {
      return absl::InvalidArgumentError("tokenizer.json: added_tokens: expected a list");
    }
    for (const Json& node : *list) {
      constexpr absl::string_view kWhere = "added_tokens";
      const Json* id = FindField(node, "id");
      AddedToken token;
      ASSIGN_OR_RETURN(token.id, TokenIdField(id != nullptr ? *id : Json(), "added_tokens.id"));
      ASSIGN_OR_RETURN(token.content, StringField(node, "content", kWhere));
      ASSIGN_OR_RETURN(token.special, BoolField(node, "special", false, kWhere));
      ASSIGN_OR_RETURN(token.single_word, BoolField(node, "single_word", false, kWhere));
      ASSIGN_OR_RETURN(token.lstrip, BoolField(node, "lstrip", false, kWhere));
      ASSIGN_OR_RETURN(token.rstrip, BoolField(node, "rstrip", false, kWhere));
      ASSIGN_OR_RETURN(token.normalized, BoolField(node, "normalized", !token.special, kWhere));
      data_->AddToken(token);
    }
    return absl::OkStatus();
  }

  absl::Status LoadPostProcessor(const Json& node, int depth) {
    ASSIGN_OR_RETURN(const std::string type, StringField(node, "type", "post_processor"));
    if (type == "ByteLevel") return absl::OkStatus();  // moves offsets only
    if (type == "Sequence" && depth == 0) {
      const Json* list = FindField(node, "processors");
      if (list == nullptr || !list->is_array()) {
        return absl::InvalidArgumentError(
            "tokenizer.json: post_processor.processors: expected a list");
      }
      for (const Json& processor : *list) RETURN_IF_ERROR(LoadPostProcessor(processor, 1));
      return absl::OkStatus();
    }
    if (type != "TemplateProcessing") {
      return absl::UnimplementedError(
          absl::StrCat("tokenizer.json: post_processor \"", type, "\" is not supported"));
    }
    has_template_ = true;
    const Json* single = FindField(node, "single");
    const Json* special_tokens = FindField(node, "special_tokens");
    if (single == nullptr || !single->is_array()) {
      return absl::InvalidArgumentError("tokenizer.json: post_processor.single: expected a list");
    }
    std::vector<TokenId> before, after;
    std::vector<TokenId>* ids = &before;
    for (const Json& piece : *single) {
      if (FindField(piece, "Sequence") != nullptr) {
        ids = &after;
        continue;
      }
      RETURN_IF_ERROR(ReadTemplateToken(piece, special_tokens, ids));
    }
    // A later processor wraps what an earlier one gave.
    data_->prefix_ids.insert(data_->prefix_ids.begin(), before.begin(), before.end());
    data_->suffix_ids.insert(data_->suffix_ids.end(), after.begin(), after.end());
    return absl::OkStatus();
  }

  absl::Status ReadTemplateToken(const Json& piece, const Json* special_tokens,
                                 std::vector<TokenId>* ids) const {
    const Json* special = FindField(piece, "SpecialToken");
    ASSIGN_OR_RETURN(const std::string name, StringField(special != nullptr ? *special : Json(),
                                                         "id", "post_processor.single"));
    const Json* entry = special_tokens == nullptr ? nullptr : FindField(*special_tokens, name);
    const Json* list = entry == nullptr ? nullptr : FindField(*entry, "ids");
    if (list == nullptr || !list->is_array()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tokenizer.json: post_processor.special_tokens: ids of \"", name, "\" are missing"));
    }
    for (const Json& node : *list) {
      ASSIGN_OR_RETURN(const TokenId id, TokenIdField(node, "post_processor.special_tokens"));
      ids->push_back(id);
    }
    return absl::OkStatus();
  }

  // tokenizer_config.json says which tokens play which part.
  absl::Status LoadConfig(const std::string& config_json) {
    ASSIGN_OR_RETURN(const Json config, Parse(config_json, "tokenizer_config.json"));
    const auto find = [&](absl::string_view name, std::optional<TokenId>* id) {
      const Json* field = FindField(config, name);
      if (field == nullptr) return;
      if (const Json* content = FindField(*field, "content"); content != nullptr) field = content;
      if (!field->is_string()) return;
      const std::optional<TokenId> found = data_->FindToken(field->get_ref<const std::string&>());
      if (found.has_value()) *id = found;
    };
    find("bos_token", &data_->bos_token_id);
    find("eos_token", &data_->eos_token_id);
    find("unk_token", &data_->unknown_token_id);
    find("pad_token", &data_->padding_token_id);
    return AddConfiguredTokens(config);
  }

  // The tokenizer classes of Llama and Gemma put BOS and EOS around a text as the configuration
  // says, whatever the template of tokenizer.json has. transformers 4 does so, as does llama.cpp
  // when it converts a model; transformers 5 reads the template alone. Without flags the template
  // stays, and without either, BOS goes first.
  absl::Status AddConfiguredTokens(const Json& config) {
    const Json* name = FindField(config, "tokenizer_class");
    if (name == nullptr || !name->is_string()) return absl::OkStatus();
    absl::string_view family = name->get_ref<const std::string&>();
    absl::ConsumeSuffix(&family, "Fast");
    const bool gemma = family == "GemmaTokenizer";
    if (!gemma && family != "LlamaTokenizer" && family != "CodeLlamaTokenizer") {
      return absl::OkStatus();
    }
    const bool has_flags = FindField(config, "add_bos_token") != nullptr ||
                           FindField(config, "add_eos_token") != nullptr;
    if (has_template_ && !has_flags) return absl::OkStatus();
    ASSIGN_OR_RETURN(data_->prefix_ids,
                     ConfiguredToken(config, "bos", /*otherwise=*/true, gemma ? "<bos>" : "<s>"));
    ASSIGN_OR_RETURN(data_->suffix_ids,
                     ConfiguredToken(config, "eos", /*otherwise=*/false, gemma ? "<eos>" : "</s>"));
    return absl::OkStatus();
  }

  // The token of `role` if the configuration's flag for it is true, or is absent and `otherwise`
  // true; else none. `usual`: the token where the configuration names none.
  absl::StatusOr<std::vector<TokenId>> ConfiguredToken(const Json& config, absl::string_view role,
                                                       bool otherwise, absl::string_view usual) {
    const std::string flag = absl::StrCat("add_", role, "_token");
    const std::string key = absl::StrCat(role, "_token");
    const Json* given = FindField(config, flag);
    if (given != nullptr && !given->is_boolean()) {
      return absl::InvalidArgumentError(
          absl::StrCat("tokenizer_config.json: ", flag, ": expected true or false"));
    }
    if (!(given != nullptr ? given->get<bool>() : otherwise)) return std::vector<TokenId>();
    std::optional<TokenId> id = role == "bos" ? data_->bos_token_id : data_->eos_token_id;
    if (!config.contains(key)) id = data_->FindToken(usual);
    if (id.has_value()) return std::vector<TokenId>{*id};
    if (given == nullptr) return std::vector<TokenId>();
    return absl::InvalidArgumentError(absl::StrCat("tokenizer_config.json: ", flag, " is true, so ",
                                                   key, " must be a token of the vocabulary"));
  }

  const Json& root_;
  std::unique_ptr<TokenizerData> data_;
  bool has_template_ = false;  // tokenizer.json says what goes around a text
};

}  // namespace

absl::StatusOr<std::unique_ptr<TokenizerData>> LoadJson(const TokenizerSource& source) {
  ASSIGN_OR_RETURN(const Json root, Parse(source.tokenizer_json, "tokenizer.json"));
  return JsonLoader(root).Load(source.tokenizer_config_json);
}

}  // namespace tandem::model::tokenizer_internal
