#include "common/model/gguf_checkpoint.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/gguf.h"
#include "common/model/gguf_config.h"
#include "common/model/loaded_checkpoint.h"
#include "common/telemetry/log.h"

namespace tandem::model {
namespace {

// The longest tokens of published vocabularies have some hundred bytes. Loading a vocabulary whose
// scores are tied takes time quadratic in a token's length.
constexpr size_t kTokenBytesMax = 4096;

// A token id of the metadata, checked against the vocabulary.
absl::StatusOr<std::optional<int32_t>> FindTokenId(const GgufFile& file, absl::string_view name,
                                                   int32_t vocab_size) {
  const std::string key = absl::StrCat("tokenizer.ggml.", name);
  ASSIGN_OR_RETURN(const std::optional<int64_t> id, file.FindInteger(key));
  if (!id.has_value()) return std::optional<int32_t>();
  if (*id < 0 || *id >= vocab_size) {
    return absl::InvalidArgumentError(absl::StrCat("metadata key ", key, " is ", *id,
                                                   ", the vocabulary has ", vocab_size, " tokens"));
  }
  return std::optional<int32_t>(static_cast<int32_t>(*id));
}

// The same of an id that answers do not depend on: absent if the vocabulary does not have it.
absl::StatusOr<std::optional<int32_t>> FindSpareTokenId(const GgufFile& file,
                                                        absl::string_view name,
                                                        int32_t vocab_size) {
  const std::string key = absl::StrCat("tokenizer.ggml.", name);
  ASSIGN_OR_RETURN(const std::optional<int64_t> id, file.FindInteger(key));
  if (!id.has_value() || (*id >= 0 && *id < vocab_size)) return FindTokenId(file, name, vocab_size);
  Log(LogLevel::kWarning, "a token that the model's file names is not in its vocabulary",
      {{"key", key}, {"id", *id}, {"tokens", vocab_size}});
  return std::optional<int32_t>();
}

absl::Status CheckCount(absl::string_view key, size_t found, size_t expected) {
  if (found == expected) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("metadata key ", key, " has ", found,
                                                 " elements, expected one for each of ", expected,
                                                 " tokens"));
}

absl::StatusOr<TokenizerSource> ReadTokenizer(const GgufFile& file, int32_t vocab_size) {
  TokenizerSource source;
  ASSIGN_OR_RETURN(const auto model, file.FindString("tokenizer.ggml.model"));
  if (!model.has_value()) return source;
  source.gguf_model = *model;
  ASSIGN_OR_RETURN(const auto pre, file.FindString("tokenizer.ggml.pre"));
  source.gguf_pre = pre.value_or("default");
  ASSIGN_OR_RETURN(auto tokens, file.FindStrings("tokenizer.ggml.tokens"));
  if (!tokens.has_value()) {
    return absl::InvalidArgumentError("metadata key tokenizer.ggml.tokens is missing");
  }
  source.tokens = std::move(*tokens);
  const size_t count = source.tokens.size();
  for (size_t i = 0; i < count; ++i) {
    if (source.tokens[i].size() <= kTokenBytesMax) continue;
    return absl::InvalidArgumentError(absl::StrCat("metadata key tokenizer.ggml.tokens: token ", i,
                                                   " has ", source.tokens[i].size(),
                                                   " bytes, expected at most ", kTokenBytesMax));
  }
  if (count > static_cast<size_t>(vocab_size)) {
    return absl::InvalidArgumentError(absl::StrCat("metadata key tokenizer.ggml.tokens has ", count,
                                                   " tokens, the embedding only ", vocab_size));
  }
  ASSIGN_OR_RETURN(auto scores, file.FindFloats("tokenizer.ggml.scores"));
  if (scores.has_value()) {
    RETURN_IF_ERROR(CheckCount("tokenizer.ggml.scores", scores->size(), count));
    source.scores = std::move(*scores);
  }
  ASSIGN_OR_RETURN(const auto types, file.FindIntegers("tokenizer.ggml.token_type"));
  if (types.has_value()) {
    RETURN_IF_ERROR(CheckCount("tokenizer.ggml.token_type", types->size(), count));
    for (const int64_t type : *types) source.token_types.push_back(static_cast<int32_t>(type));
  }
  ASSIGN_OR_RETURN(auto merges, file.FindStrings("tokenizer.ggml.merges"));
  if (merges.has_value()) source.merges = std::move(*merges);
  const auto bound = static_cast<int32_t>(count);
  ASSIGN_OR_RETURN(source.bos_token_id, FindTokenId(file, "bos_token_id", bound));
  ASSIGN_OR_RETURN(source.eos_token_id, FindTokenId(file, "eos_token_id", bound));
  ASSIGN_OR_RETURN(source.eot_token_id, FindTokenId(file, "eot_token_id", bound));
  ASSIGN_OR_RETURN(source.unknown_token_id, FindSpareTokenId(file, "unknown_token_id", bound));
  ASSIGN_OR_RETURN(source.padding_token_id, FindSpareTokenId(file, "padding_token_id", bound));
  ASSIGN_OR_RETURN(source.add_bos, file.FindBool("tokenizer.ggml.add_bos_token"));
  ASSIGN_OR_RETURN(source.add_eos, file.FindBool("tokenizer.ggml.add_eos_token"));
  ASSIGN_OR_RETURN(source.add_space_prefix, file.FindBool("tokenizer.ggml.add_space_prefix"));
  return source;
}

// Whether a control token of this name ends a text. GGUF's metadata have one eos_token_id, which is
// the end of a turn in models that chat.
bool IsTextEnd(absl::string_view token) {
  return token == "<|endoftext|>" || token == "<|end_of_text|>" || token == "<|end|>";
}

absl::StatusOr<std::vector<int32_t>> StopTokens(const GgufFile& file,
                                                const TokenizerSource& tokenizer) {
  constexpr int32_t kControl = 3;
  std::vector<int32_t> ids;
  ASSIGN_OR_RETURN(
      const std::optional<int32_t> eom,
      FindTokenId(file, "eom_token_id", static_cast<int32_t>(tokenizer.tokens.size())));
  for (const std::optional<int32_t> id : {tokenizer.eos_token_id, tokenizer.eot_token_id, eom}) {
    if (id.has_value()) ids.push_back(*id);
  }
  for (size_t i = 0; i < tokenizer.token_types.size(); ++i) {
    const std::string& token = tokenizer.tokens[i];
    if (tokenizer.token_types[i] == kControl && (IsTurnEnd(token) || IsTextEnd(token))) {
      ids.push_back(static_cast<int32_t>(i));
    }
  }
  return ids;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Checkpoint>> OpenGgufCheckpoint(std::unique_ptr<MappedFile> file) {
  const absl::Span<const std::byte> bytes = file->bytes();
  ASSIGN_OR_RETURN(const GgufFile gguf, GgufFile::Parse(bytes));
  LoadedCheckpoint::Parts parts;
  ASSIGN_OR_RETURN(const Architecture* architecture, FindGgufArchitecture(gguf));
  ASSIGN_OR_RETURN(parts.config, ReadGgufConfig(gguf, *architecture, bytes));
  std::vector<FileTensor> tensors;
  for (const GgufTensor& tensor : gguf.tensors()) {
    FileTensor found;
    found.name = tensor.name;
    found.type = tensor.type;
    found.shape.assign(tensor.dimensions.rbegin(), tensor.dimensions.rend());
    found.data = bytes.data() + tensor.offset;
    tensors.push_back(std::move(found));
  }
  ASSIGN_OR_RETURN(parts.tensors, TensorTable::Bind(parts.config, *architecture,
                                                    CheckpointFormat::kGguf, tensors));
  ASSIGN_OR_RETURN(parts.tokenizer, ReadTokenizer(gguf, parts.config.vocab_size));
  ASSIGN_OR_RETURN(parts.stop_token_ids, StopTokens(gguf, parts.tokenizer));
  ASSIGN_OR_RETURN(const auto chat_template, gguf.FindString("tokenizer.chat_template"));
  parts.chat_template = chat_template.value_or(std::string(architecture->chat_template));
  ASSIGN_OR_RETURN(auto with_tools, gguf.FindString("tokenizer.chat_template.tool_use"));
  parts.tool_chat_template = std::move(with_tools).value_or("");
  parts.files.push_back(std::move(file));
  return std::make_unique<LoadedCheckpoint>(std::move(parts));
}

}  // namespace tandem::model
