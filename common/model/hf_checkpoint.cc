#include "common/model/hf_checkpoint.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/architecture/registry.h"
#include "common/model/hf_config.h"
#include "common/model/hf_quantization.h"
#include "common/model/json_reading.h"
#include "common/model/loaded_checkpoint.h"
#include "common/model/safetensors.h"

namespace tandem::model {
namespace {

using nlohmann::json;

// Gemma's tokenizer.json, the largest of the supported families', is 33 MB.
constexpr size_t kTokenizerBytesMax = size_t{256} << 20;
constexpr size_t kJsonBytesMax = size_t{64} << 20;
// Beside chat_template.jinja.
constexpr absl::string_view kToolTemplateFile = "additional_chat_templates/tool_use.jinja";

absl::Status At(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(path, ": ", status.message()));
}

// The file's text; nullopt if the file does not exist.
absl::StatusOr<std::optional<std::string>> ReadOptional(const std::string& path, size_t bytes_max) {
  absl::StatusOr<std::string> text = ReadTextFile(path, bytes_max);
  if (text.ok()) return std::optional<std::string>(std::move(text).value());
  if (absl::IsNotFound(text.status())) return std::optional<std::string>();
  return text.status();
}

// nullopt if the file does not exist.
absl::StatusOr<std::optional<json>> ReadOptionalJson(const std::string& path) {
  ASSIGN_OR_RETURN(const std::optional<std::string> text, ReadOptional(path, kJsonBytesMax));
  if (!text.has_value()) return std::optional<json>();
  absl::StatusOr<json> value = ParseJsonObject(*text, "the file");
  if (!value.ok()) return At(path, value.status());
  return std::optional<json>(std::move(value).value());
}

struct Weights {
  std::vector<std::unique_ptr<MappedFile>> files;
  std::vector<FileTensor> tensors;
};

absl::Status AddFile(const std::string& path, Weights& weights) {
  ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> file, MappedFile::Open(path));
  absl::StatusOr<std::vector<FileTensor>> tensors = ParseSafetensors(file->bytes());
  if (!tensors.ok()) return At(path, tensors.status());
  for (FileTensor& tensor : *tensors) weights.tensors.push_back(std::move(tensor));
  weights.files.push_back(std::move(file));
  return absl::OkStatus();
}

absl::Status AddShards(const std::string& folder, const std::string& index_path,
                       absl::string_view index_text, Weights& weights) {
  absl::StatusOr<ShardIndex> index = ParseShardIndex(index_text);
  if (!index.ok()) return At(index_path, index.status());
  absl::flat_hash_map<std::string, size_t> file_of;
  for (size_t i = 0; i < index->files.size(); ++i) {
    const size_t first = weights.tensors.size();
    RETURN_IF_ERROR(AddFile(absl::StrCat(folder, "/", index->files[i]), weights));
    for (size_t t = first; t < weights.tensors.size(); ++t) {
      file_of.emplace(weights.tensors[t].name, i);
    }
  }
  for (const auto& [name, file] : index->tensors) {
    const auto found = file_of.find(name);
    if (found == file_of.end() || found->second != file) {
      return absl::InvalidArgumentError(absl::StrCat(
          index_path, ": tensor ", name, " should be in ", index->files[file],
          found == file_of.end() ? ", which does not have it"
                                 : absl::StrCat(", it is in ", index->files[found->second])));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Weights> ReadWeights(const std::string& folder) {
  Weights weights;
  const std::string single = absl::StrCat(folder, "/model.safetensors");
  const std::string index_path = absl::StrCat(folder, "/", kShardIndexFile);
  ASSIGN_OR_RETURN(const std::optional<std::string> index, ReadOptional(index_path, kJsonBytesMax));
  if (index.has_value()) {
    RETURN_IF_ERROR(AddShards(folder, index_path, *index, weights));
    return weights;
  }
  const absl::Status added = AddFile(single, weights);
  if (absl::IsNotFound(added)) {
    return absl::InvalidArgumentError(absl::StrCat(
        folder, ": neither model.safetensors nor model.safetensors.index.json is there"));
  }
  RETURN_IF_ERROR(added);
  return weights;
}

// How fp8 tensors are scaled, by config.json or, where that does not say, by ModelOpt's file.
absl::StatusOr<std::optional<Fp8Scheme>> ReadScheme(const std::string& folder, const json& config) {
  ASSIGN_OR_RETURN(std::optional<Fp8Scheme> scheme, ParseQuantization(config));
  if (scheme.has_value()) return scheme;
  const std::string path = absl::StrCat(folder, "/", kModelOptFile);
  ASSIGN_OR_RETURN(const auto file, ReadOptionalJson(path));
  if (!file.has_value()) return scheme;
  absl::StatusOr<Fp8Scheme> found = ParseModelOptFile(*file);
  if (!found.ok()) return At(path, found.status());
  return std::optional<Fp8Scheme>(std::move(found).value());
}

// Adds the ids of "eos_token_id", an integer or an array of them, that the vocabulary has.
absl::Status AddEosIds(const json& object, int32_t vocab_size, std::vector<int32_t>& ids) {
  const json* value = JsonMembers(object).Find("eos_token_id");
  if (value == nullptr) return absl::OkStatus();
  const size_t count = value->is_array() ? value->size() : 1;
  for (size_t i = 0; i < count; ++i) {
    const json& id = value->is_array() ? (*value)[i] : *value;
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() >= vocab_size) {
      return absl::InvalidArgumentError(absl::StrCat("key \"eos_token_id\" holds ",
                                                     id.is_number() ? id.dump() : id.type_name(),
                                                     ", expected token ids below ", vocab_size));
    }
    ids.push_back(id.get<int32_t>());
  }
  return absl::OkStatus();
}

// A token's text as tokenizer_config.json gives it: a string, or an object with "content".
std::string TokenText(const json* token) {
  if (token != nullptr && token->is_object()) token = JsonMembers(*token).Find("content");
  return token != nullptr && token->is_string() ? token->get<std::string>() : std::string();
}

// Adds special tokens that end a turn, and eos_token, by their names.
void AddNamedStops(const json& tokenizer_config, int32_t vocab_size, std::vector<int32_t>& ids) {
  const JsonMembers members(tokenizer_config);
  const json* added = members.Find("added_tokens_decoder");
  if (added == nullptr || !added->is_object()) return;
  const std::string eos = TokenText(members.Find("eos_token"));
  for (const auto& [key, token] : added->items()) {
    int32_t id = 0;
    if (!absl::SimpleAtoi(key, &id) || id < 0 || id >= vocab_size || !token.is_object()) continue;
    const json* special = JsonMembers(token).Find("special");
    const bool is_special = special != nullptr && special->is_boolean() && special->get<bool>();
    const std::string text = TokenText(&token);
    if (is_special && !text.empty() && (text == eos || IsTurnEnd(text))) ids.push_back(id);
  }
}

// tokenizer_config.json's templates: a string, or a list of named ones, of which "default" is for
// conversations, or else the first, and "tool_use" for those with tools, as in transformers.
void ReadTemplates(const json& tokenizer_config, LoadedCheckpoint::Parts& parts) {
  const json* value = JsonMembers(tokenizer_config).Find("chat_template");
  if (value == nullptr) return;
  if (value->is_string()) parts.chat_template = value->get<std::string>();
  if (!value->is_array()) return;
  bool has_default = false;
  for (const json& entry : *value) {
    if (!entry.is_object()) continue;
    const JsonMembers members(entry);
    const json* name = members.Find("name");
    const json* text = members.Find("template");
    if (text == nullptr || !text->is_string()) continue;
    if (name != nullptr && *name == "tool_use") parts.tool_chat_template = text->get<std::string>();
    const bool is_default = name != nullptr && *name == "default";
    if (is_default ? !std::exchange(has_default, true) : parts.chat_template.empty())
      parts.chat_template = text->get<std::string>();
  }
}

// Tokenizer, chat template and stop tokens.
absl::Status ReadTextSide(const std::string& folder, const json& config,
                          LoadedCheckpoint::Parts& parts) {
  const int32_t vocab_size = parts.config.vocab_size;
  const auto path = [&](absl::string_view name) { return absl::StrCat(folder, "/", name); };
  ASSIGN_OR_RETURN(auto tokenizer, ReadOptional(path(kTokenizerFile), kTokenizerBytesMax));
  parts.tokenizer.tokenizer_json = std::move(tokenizer).value_or("");
  if (absl::Status status = AddEosIds(config, vocab_size, parts.stop_token_ids); !status.ok()) {
    return At(path(kConfigFile), status);
  }
  ASSIGN_OR_RETURN(const auto generation, ReadOptionalJson(path(kGenerationConfigFile)));
  if (generation.has_value()) {
    const absl::Status status = AddEosIds(*generation, vocab_size, parts.stop_token_ids);
    if (!status.ok()) return At(path(kGenerationConfigFile), status);
  }
  ASSIGN_OR_RETURN(const auto tokenizer_config, ReadOptionalJson(path(kTokenizerConfigFile)));
  if (tokenizer_config.has_value()) {
    ASSIGN_OR_RETURN(auto text, ReadOptional(path(kTokenizerConfigFile), kJsonBytesMax));
    parts.tokenizer.tokenizer_config_json = std::move(text).value_or("");
    AddNamedStops(*tokenizer_config, vocab_size, parts.stop_token_ids);
    ReadTemplates(*tokenizer_config, parts);
  }
  // The separate file takes precedence, as in transformers.
  ASSIGN_OR_RETURN(auto jinja, ReadOptional(path(kChatTemplateFile), kJsonBytesMax));
  if (jinja.has_value()) {
    parts.chat_template = std::move(*jinja);
    ASSIGN_OR_RETURN(auto with_tools, ReadOptional(path(kToolTemplateFile), kJsonBytesMax));
    parts.tool_chat_template = std::move(with_tools).value_or("");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Checkpoint>> OpenHuggingFaceCheckpoint(const std::string& folder) {
  const std::string config_path = absl::StrCat(folder, "/", kConfigFile);
  ASSIGN_OR_RETURN(const std::optional<std::string> text, ReadOptional(config_path, kJsonBytesMax));
  if (!text.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat(folder, ": a folder without config.json is not a checkpoint"));
  }
  LoadedCheckpoint::Parts parts;
  absl::StatusOr<ModelConfig> config = ParseHuggingFaceConfig(*text);
  if (!config.ok()) return At(config_path, config.status());
  parts.config = std::move(config).value();
  ASSIGN_OR_RETURN(const json config_json, ParseJsonObject(*text, config_path));
  RETURN_IF_ERROR(ReadTextSide(folder, config_json, parts));
  ASSIGN_OR_RETURN(const std::optional<Fp8Scheme> scheme, ReadScheme(folder, config_json));
  ASSIGN_OR_RETURN(Weights weights, ReadWeights(folder));
  if (const absl::Status status = AttachScales(scheme, weights.tensors); !status.ok()) {
    return At(folder, status);
  }
  const Architecture* architecture =
      ArchitectureRegistry::BuiltIn().FindByName(parts.config.architecture);
  absl::StatusOr<TensorTable> table = TensorTable::Bind(
      parts.config, *architecture, CheckpointFormat::kHuggingFace, weights.tensors);
  if (parts.chat_template.empty()) parts.chat_template = std::string(architecture->chat_template);
  if (!table.ok()) return At(folder, table.status());
  parts.tensors = std::move(table).value();
  parts.files = std::move(weights.files);
  return std::make_unique<LoadedCheckpoint>(std::move(parts));
}

}  // namespace tandem::model
