// Implements the readers of normalisers, pre-tokenisers and decoders
// (common/model/tokenizer/json_loader.h).
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model/tokenizer/json_loader.h"

namespace tandem::model::tokenizer_internal {
namespace {

// Components nest only as sequences of components; real files have one level.
constexpr int kNestingMax = 8;

absl::Status Unsupported(absl::string_view what, absl::string_view type) {
  return absl::UnimplementedError(
      absl::StrCat("tokenizer.json: ", what, " \"", type, "\" is not supported"));
}

// The text of {"String": ...} or {"Regex": ...}.
struct Pattern {
  bool is_regex;
  std::string text;
};
absl::StatusOr<Pattern> ReadPattern(const Json& node, absl::string_view where) {
  const Json* pattern = FindField(node, "pattern");
  if (pattern != nullptr && FindField(*pattern, "Regex") != nullptr) {
    ASSIGN_OR_RETURN(std::string text, StringField(*pattern, "Regex", where));
    return Pattern{true, std::move(text)};
  }
  if (pattern == nullptr || FindField(*pattern, "String") == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokenizer.json: ", where, ".pattern: expected a String or a Regex"));
  }
  ASSIGN_OR_RETURN(std::string text, StringField(*pattern, "String", where));
  if (text.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("tokenizer.json: ", where, ".pattern is empty"));
  }
  return Pattern{false, std::move(text)};
}

// Calls `read` on each component of a Sequence's list `list_name`.
template <typename Read>
absl::Status ForEachComponent(const Json& node, absl::string_view list_name,
                              absl::string_view where, const Read& read) {
  const Json* list = FindField(node, list_name);
  if (list == nullptr || !list->is_array()) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokenizer.json: ", where, ".", list_name, ": expected a list"));
  }
  for (const Json& component : *list) RETURN_IF_ERROR(read(component));
  return absl::OkStatus();
}

absl::Status CheckNesting(int depth, absl::string_view where) {
  if (depth <= kNestingMax) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("tokenizer.json: ", where, " nests deeper than ", kNestingMax));
}

absl::Status ReadNormalizerAt(const Json& node, int depth, Normalizer* normalizer) {
  constexpr absl::string_view kWhere = "normalizer";
  RETURN_IF_ERROR(CheckNesting(depth, kWhere));
  ASSIGN_OR_RETURN(const std::string type, StringField(node, "type", kWhere));
  if (type == "Sequence") {
    return ForEachComponent(node, "normalizers", kWhere, [&](const Json& component) {
      return ReadNormalizerAt(component, depth + 1, normalizer);
    });
  }
  if (type == "NFC") return normalizer->AddForm(Normalizer::Form::kNfc);
  if (type == "NFD") return normalizer->AddForm(Normalizer::Form::kNfd);
  if (type == "NFKC") return normalizer->AddForm(Normalizer::Form::kNfkc);
  if (type == "NFKD") return normalizer->AddForm(Normalizer::Form::kNfkd);
  if (type == "Prepend") {
    ASSIGN_OR_RETURN(const std::string content, StringField(node, "prepend", kWhere));
    normalizer->AddPrepend(content);
    return absl::OkStatus();
  }
  if (type != "Replace") return Unsupported(kWhere, type);
  ASSIGN_OR_RETURN(const Pattern pattern, ReadPattern(node, kWhere));
  ASSIGN_OR_RETURN(const std::string content, StringField(node, "content", kWhere));
  if (!pattern.is_regex) {
    normalizer->AddReplace(pattern.text, content);
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(RegexSplitter regex, RegexSplitter::Create(pattern.text));
  normalizer->AddReplaceRegex(std::move(regex), content);
  return absl::OkStatus();
}

absl::StatusOr<SplitBehavior> ReadBehavior(const Json& node, absl::string_view where) {
  ASSIGN_OR_RETURN(const std::string name, StringField(node, "behavior", where));
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  return Unsupported("Split behavior", name);
}

absl::StatusOr<PreTokenizerStep> ReadSplit(const Json& node, absl::string_view where) {
  PreTokenizerStep step{};
  ASSIGN_OR_RETURN(const Pattern pattern, ReadPattern(node, where));
  step.kind = PreTokenizerStep::Kind::kSplitString;
  step.pattern = pattern.text;
  if (pattern.is_regex) {
    step.kind = PreTokenizerStep::Kind::kSplitRegex;
    ASSIGN_OR_RETURN(RegexSplitter regex, RegexSplitter::Create(pattern.text));
    step.regex = std::make_shared<const RegexSplitter>(std::move(regex));
  }
  ASSIGN_OR_RETURN(step.behavior, ReadBehavior(node, where));
  ASSIGN_OR_RETURN(step.invert, BoolField(node, "invert", false, where));
  return step;
}

absl::StatusOr<PreTokenizerStep> ReadMetaspace(const Json& node, absl::string_view where) {
  PreTokenizerStep step{};
  step.kind = PreTokenizerStep::Kind::kMetaspace;
  ASSIGN_OR_RETURN(step.mark, StringField(node, "replacement", where));
  if (step.mark.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("tokenizer.json: ", where, ".replacement is empty"));
  }
  ASSIGN_OR_RETURN(step.split, BoolField(node, "split", true, where));
  ASSIGN_OR_RETURN(const bool prefix, BoolField(node, "add_prefix_space", true, where));
  step.prepend = prefix ? PrependScheme::kAlways : PrependScheme::kNever;
  if (FindField(node, "prepend_scheme") == nullptr) return step;
  ASSIGN_OR_RETURN(const std::string scheme, StringField(node, "prepend_scheme", where));
  if (scheme == "always") {
    step.prepend = PrependScheme::kAlways;
  } else if (scheme == "first") {
    step.prepend = PrependScheme::kFirst;
  } else if (scheme == "never") {
    step.prepend = PrependScheme::kNever;
  } else {
    return Unsupported("Metaspace prepend_scheme", scheme);
  }
  return step;
}

absl::Status ReadPreTokenizerAt(const Json& node, int depth, std::vector<PreTokenizerStep>* steps) {
  constexpr absl::string_view kWhere = "pre_tokenizer";
  RETURN_IF_ERROR(CheckNesting(depth, kWhere));
  ASSIGN_OR_RETURN(const std::string type, StringField(node, "type", kWhere));
  if (type == "Sequence") {
    return ForEachComponent(node, "pretokenizers", kWhere, [&](const Json& component) {
      return ReadPreTokenizerAt(component, depth + 1, steps);
    });
  }
  if (!steps->empty() && steps->back().kind == PreTokenizerStep::Kind::kByteLevel) {
    return absl::UnimplementedError(absl::StrCat("tokenizer.json: pre_tokenizer \"", type,
                                                 "\" after ByteLevel is not supported"));
  }
  PreTokenizerStep step{};
  if (type == "Digits") {
    step.kind = PreTokenizerStep::Kind::kDigits;
    ASSIGN_OR_RETURN(step.individual_digits, BoolField(node, "individual_digits", false, kWhere));
  } else if (type == "ByteLevel") {
    step.kind = PreTokenizerStep::Kind::kByteLevel;
    ASSIGN_OR_RETURN(step.add_prefix_space, BoolField(node, "add_prefix_space", true, kWhere));
    ASSIGN_OR_RETURN(step.use_regex, BoolField(node, "use_regex", true, kWhere));
  } else if (type == "Split") {
    ASSIGN_OR_RETURN(step, ReadSplit(node, kWhere));
  } else if (type == "Metaspace") {
    ASSIGN_OR_RETURN(step, ReadMetaspace(node, kWhere));
  } else {
    return Unsupported(kWhere, type);
  }
  steps->push_back(std::move(step));
  return absl::OkStatus();
}

// Reads one step of a decoder, which must come in the order replacements, byte fallback, fuse,
// strip. `*fused`: whether a Fuse step has been read.
absl::Status ReadDecoderStep(const Json& node, int depth, DecoderSpec* decoder, bool* fused) {
  constexpr absl::string_view kWhere = "decoder";
  RETURN_IF_ERROR(CheckNesting(depth, kWhere));
  ASSIGN_OR_RETURN(const std::string type_name, StringField(node, "type", kWhere));
  const absl::string_view type = type_name;
  if (type == "Sequence") {
    return ForEachComponent(node, "decoders", kWhere, [&](const Json& component) {
      return ReadDecoderStep(component, depth + 1, decoder, fused);
    });
  }
  const bool may_spell = !decoder->byte_fallback && !*fused;
  if (type == "Fuse") {
    *fused = true;
  } else if (type == "ByteFallback" && may_spell) {
    decoder->byte_fallback = true;
  } else if (type == "Replace" && may_spell && decoder->metaspace_mark.empty()) {
    ASSIGN_OR_RETURN(const Pattern pattern, ReadPattern(node, kWhere));
    if (pattern.is_regex) return Unsupported(kWhere, "Replace with a Regex");
    ASSIGN_OR_RETURN(std::string content, StringField(node, "content", kWhere));
    decoder->replaces.emplace_back(pattern.text, std::move(content));
  } else if (type == "Metaspace" && may_spell && decoder->metaspace_mark.empty()) {
    ASSIGN_OR_RETURN(const PreTokenizerStep step, ReadMetaspace(node, kWhere));
    decoder->metaspace_mark = step.mark;
    decoder->metaspace_drops_first = step.prepend != PrependScheme::kNever;
  } else if (type == "Strip" && *fused && decoder->strip_left == 0) {
    ASSIGN_OR_RETURN(const std::string content, StringField(node, "content", kWhere));
    const Json start = node.value("start", Json());
    const Json stop = node.value("stop", Json());
    if (content != " " || stop != 0 || !start.is_number_unsigned() || start > 1000) {
      return Unsupported(kWhere, "Strip other than of leading spaces");
    }
    decoder->strip_left = start.get<int>();
  } else {
    return Unsupported(kWhere, absl::StrCat(type, "\" at this place of the sequence \""));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadNormalizer(const Json& node, Normalizer* normalizer) {
  return ReadNormalizerAt(node, 0, normalizer);
}

absl::StatusOr<std::vector<PreTokenizerStep>> ReadPreTokenizer(const Json& node) {
  std::vector<PreTokenizerStep> steps;
  RETURN_IF_ERROR(ReadPreTokenizerAt(node, 0, &steps));
  return steps;
}

absl::StatusOr<DecoderSpec> ReadDecoder(const Json& node) {
  DecoderSpec decoder;
  ASSIGN_OR_RETURN(const std::string type, StringField(node, "type", "decoder"));
  if (type == "ByteLevel") {
    decoder.byte_level = true;
    return decoder;
  }
  bool fused = false;
  RETURN_IF_ERROR(ReadDecoderStep(node, 0, &decoder, &fused));
  return decoder;
}

}  // namespace tandem::model::tokenizer_internal
