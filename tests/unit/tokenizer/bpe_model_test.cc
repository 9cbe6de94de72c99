// Goal: whatever the merges and however long the word, BpeModel gives what the definition gives:
// join the pair of lowest key, leftmost among equals, until there is none. Random vocabularies over
// few letters make cuts, windows, seams that need mending and seams that never settle; characters
// that are no tokens fall back to their bytes.
#include "common/model/tokenizer/bpe_model.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/model/tokenizer/utf8.h"

namespace tandem::model::tokenizer_internal {
namespace {

struct Vocabulary {
  std::vector<std::string> texts;                                              // by id
  std::map<std::pair<TokenId, TokenId>, std::pair<uint32_t, TokenId>> merges;  // pair: rank, made
  std::vector<uint32_t> ranks;  // by id, for merges by score
  BpeModel model;
};

using Random = std::mt19937_64;

Random MakeRandom() {
  const uint64_t seed = std::random_device()();
  std::cout << "seed " << seed << "\n";
  return Random(seed);
}

// The texts that the vocabulary has, then texts made of two earlier ones from `first` on. The ranks
// are in no particular order, so that some tokens are never reached and some merges come before
// those that make their parts.
void AddMadeTexts(Random& random, size_t first, Vocabulary* vocabulary) {
  const size_t num_made = 1 + random() % 60;
  std::set<std::string> seen(vocabulary->texts.begin(), vocabulary->texts.end());
  for (size_t i = 0; i < num_made; ++i) {
    const auto pick = [&] {
      return vocabulary->texts[first + random() % (vocabulary->texts.size() - first)];
    };
    std::string text = pick();
    text += pick();
    if (text.size() <= 24 && seen.insert(text).second) vocabulary->texts.push_back(text);
  }
  vocabulary->model.tokens().Reserve(vocabulary->texts.size(), 4096);
  for (size_t id = 0; id < vocabulary->texts.size(); ++id) {
    vocabulary->model.tokens().Add(vocabulary->texts[id], static_cast<TokenId>(id));
  }
}

void MakeTexts(Random& random, Vocabulary* vocabulary) {
  const size_t num_letters = 1 + random() % 6;
  for (size_t i = 0; i < num_letters; ++i) vocabulary->texts.push_back(std::string(1, 'a' + i));
  AddMadeTexts(random, 0, vocabulary);
  BpeModel::Options options;
  options.byte_level = true;
  options.byte_ids.fill(kNoToken);
  vocabulary->model.SetOptions(options);
}

void UsePairs(Random& random, Vocabulary* vocabulary, bool merges_bytes = false) {
  const auto size = static_cast<TokenId>(vocabulary->texts.size());
  std::map<std::string, TokenId> ids;
  for (TokenId id = 0; id < size; ++id) ids[vocabulary->texts[id]] = id;
  std::vector<std::pair<std::pair<TokenId, TokenId>, TokenId>> found;
  for (TokenId left = 0; left < size; ++left) {
    for (TokenId right = 0; right < size; ++right) {
      const auto made = ids.find(vocabulary->texts[left] + vocabulary->texts[right]);
      if (made != ids.end() && random() % 3 != 0) found.push_back({{left, right}, made->second});
    }
  }
  std::shuffle(found.begin(), found.end(), random);
  PairTable pairs;
  pairs.Reserve(found.size());
  JoinTable joins;
  if (!merges_bytes) joins.Enable();
  for (uint32_t rank = 0; rank < found.size(); ++rank) {
    const auto& [pair, made] = found[rank];
    pairs.Set({pair.first, pair.second, rank, made});
    if (!merges_bytes) joins.Note(vocabulary->texts[made]);
    vocabulary->merges[pair] = {rank, made};
  }
  vocabulary->model.SetMerges(std::move(pairs), std::move(joins));
}

void UseRanks(Random& random, Vocabulary* vocabulary) {
  std::vector<uint32_t> order(vocabulary->texts.size());
  for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), random);
  vocabulary->ranks = order;
  vocabulary->model.SetRanks(order);
}

// The key of joining the pieces `left` and `right`; the made token. kNoMerge: they do not join.
std::pair<uint32_t, TokenId> KeyOf(const Vocabulary& vocabulary, TokenId left, TokenId right) {
  if (vocabulary.ranks.empty()) {
    const auto found = vocabulary.merges.find({left, right});
    return found == vocabulary.merges.end() ? std::make_pair(BpeModel::kNoMerge, kNoToken)
                                            : found->second;
  }
  const std::string text = vocabulary.texts[left] + vocabulary.texts[right];
  const auto found = std::find(vocabulary.texts.begin(), vocabulary.texts.end(), text);
  if (found == vocabulary.texts.end()) return {BpeModel::kNoMerge, kNoToken};
  const auto id = static_cast<TokenId>(found - vocabulary.texts.begin());
  // A longer left part goes first.
  const auto chars = std::count_if(vocabulary.texts[left].begin(), vocabulary.texts[left].end(),
                                   [](char c) { return (c & 0xC0) != 0x80; });
  return {vocabulary.ranks[id] << 8 | static_cast<uint32_t>(255 - chars), id};
}

// `ids` are those of the word's characters.
std::vector<TokenId> EncodeByDefinition(const Vocabulary& vocabulary, std::vector<TokenId> ids) {
  std::map<std::pair<TokenId, TokenId>, std::pair<uint32_t, TokenId>> known;
  while (true) {
    std::pair<uint32_t, TokenId> best = {BpeModel::kNoMerge, kNoToken};
    size_t at = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const auto [entry, is_new] = known.try_emplace({ids[i], ids[i + 1]});
      if (is_new) entry->second = KeyOf(vocabulary, ids[i], ids[i + 1]);
      if (entry->second.first < best.first) {
        best = entry->second;
        at = i;
      }
    }
    if (best.first == BpeModel::kNoMerge) return ids;
    ids[at] = best.second;
    ids.erase(ids.begin() + static_cast<ptrdiff_t>(at) + 1);
  }
}

std::string RandomWord(Random& random, size_t length) {
  std::string word;
  const size_t letters = 1 + random() % 6;
  // Now and then a stretch that repeats itself, where seams settle late or never.
  while (word.size() < length) {
    std::string unit;
    for (size_t i = 0, n = 1 + random() % 5; i < n; ++i)
      unit += static_cast<char>('a' + random() % letters);
    for (size_t i = 0, n = random() % 8 == 0 ? 300 : 1; i < n; ++i) word += unit;
  }
  word.resize(length);
  return word;
}

void CompareWords(Random& random, const Vocabulary& vocabulary) {
  BpeScratch scratch;
  for (const size_t length : {size_t{7}, 35 + random() % 20, 1100 + random() % 1900}) {
    std::string word = RandomWord(random, length);
    for (char& c : word) c = static_cast<char>('a' + (c - 'a') % vocabulary.texts.size());
    // Only letters that are tokens.
    for (char& c : word) {
      if (vocabulary.model.tokens().Find(absl::string_view(&c, 1)) == kNoToken) c = 'a';
    }
    std::vector<TokenId> ids, letters;
    for (const char c : word) letters.push_back(c - 'a');
    vocabulary.model.Encode(word, &scratch, &ids);
    ASSERT_EQ(ids, EncodeByDefinition(vocabulary, letters)) << word;
  }
}

TEST(BpeModel, EqualsTheDefinitionWithMergesByPair) {
  Random random = MakeRandom();
  for (int round = 0; round < 150; ++round) {
    Vocabulary vocabulary;
    MakeTexts(random, &vocabulary);
    UsePairs(random, &vocabulary);
    ASSERT_NO_FATAL_FAILURE(CompareWords(random, vocabulary));
  }
}

TEST(BpeModel, EqualsTheDefinitionWithMergesByScore) {
  Random random = MakeRandom();
  for (int round = 0; round < 150; ++round) {
    Vocabulary vocabulary;
    MakeTexts(random, &vocabulary);
    UseRanks(random, &vocabulary);
    ASSERT_NO_FATAL_FAILURE(CompareWords(random, vocabulary));
  }
}

// One of eight characters of three bytes; all begin with the same two.
std::string CharacterOf(uint64_t number) {
  std::string text;
  AppendUtf8(static_cast<char32_t>(0x4E00 + number % 8), &text);
  return text;
}

std::string SpellingOf(char byte) {
  static const char* const kDigits = "0123456789ABCDEF";
  const auto value = static_cast<uint8_t>(byte);
  return {'<', '0', 'x', kDigits[value >> 4], kDigits[value & 15], '>'};
}

TokenId IdOf(const Vocabulary& vocabulary, absl::string_view text) {
  const auto found = std::find(vocabulary.texts.begin(), vocabulary.texts.end(), text);
  return found == vocabulary.texts.end() ? kNoToken
                                         : static_cast<TokenId>(found - vocabulary.texts.begin());
}

// Tokens of all bytes of the eight characters, of some of these, and of texts made of those.
void MakeFallbackTexts(Random& random, bool merges_bytes, Vocabulary* vocabulary) {
  std::set<char> bytes;
  for (int i = 0; i < 8; ++i) {
    for (const char c : CharacterOf(i)) bytes.insert(c);
  }
  for (const char byte : bytes) vocabulary->texts.push_back(SpellingOf(byte));
  const size_t first = merges_bytes ? 0 : bytes.size();
  for (int i = 0; i < 8; ++i) {
    if (random() % 3 != 0 || i == 0) vocabulary->texts.push_back(CharacterOf(i));
  }
  AddMadeTexts(random, first, vocabulary);
  BpeModel::Options options;
  options.byte_fallback = true;
  options.byte_ids.fill(kNoToken);
  for (const char byte : bytes) {
    options.byte_ids[static_cast<uint8_t>(byte)] = IdOf(*vocabulary, SpellingOf(byte));
  }
  vocabulary->model.SetOptions(options);
}

void CompareFallbackWords(Random& random, const Vocabulary& vocabulary) {
  BpeScratch scratch;
  for (const size_t length : {size_t{7}, 35 + random() % 20, 1100 + random() % 1900}) {
    std::string word;
    std::vector<TokenId> letters, ids;
    // Mostly known characters, so that windows begin and end next to unknown ones.
    while (letters.size() < length) {
      const std::string character = CharacterOf(random());
      const TokenId id = IdOf(vocabulary, character);
      if (id == kNoToken && random() % 4 != 0) continue;
      word += character;
      if (id != kNoToken) letters.push_back(id);
      for (size_t i = 0; id == kNoToken && i < character.size(); ++i) {
        letters.push_back(IdOf(vocabulary, SpellingOf(character[i])));
      }
    }
    vocabulary.model.Encode(word, &scratch, &ids);
    ASSERT_EQ(ids, EncodeByDefinition(vocabulary, letters)) << word;
  }
}

TEST(BpeModel, EqualsTheDefinitionWithBytesOfUnknownCharacters) {
  Random random = MakeRandom();
  for (int round = 0; round < 120; ++round) {
    const bool merges_bytes = round % 3 == 0;
    SCOPED_TRACE(round);
    Vocabulary vocabulary;
    MakeFallbackTexts(random, merges_bytes, &vocabulary);
    round % 3 == 2 ? UseRanks(random, &vocabulary) : UsePairs(random, &vocabulary, merges_bytes);
    ASSERT_NO_FATAL_FAILURE(CompareFallbackWords(random, vocabulary));
  }
}

// The character after the second run is known; the windows begin and end within unknown ones.
TEST(BpeModel, KnownCharactersBetweenLongRunsOfBytesStayTokens) {
  BpeModel model;
  model.tokens().Reserve(260, 4096);
  BpeModel::Options options;
  options.byte_fallback = true;
  for (int byte = 0; byte < 256; ++byte) {
    model.tokens().Add(SpellingOf(static_cast<char>(byte)), byte);
    options.byte_ids[byte] = byte;
  }
  model.tokens().Add("一", 256);
  model.tokens().Add("一一", 257);
  model.tokens().Add("丁丁", 258);
  model.tokens().Add("丁一", 259);
  model.SetOptions(options);
  std::vector<uint32_t> ranks(260, BpeModel::kNoMerge);
  for (uint32_t id = 256; id < 260; ++id) ranks[id] = id - 256;
  model.SetRanks(ranks);
  std::string word = "一一";
  for (int i = 0; i < 170; ++i) word += "丁";
  word += "一";
  for (int i = 0; i < 200; ++i) word += "丁";
  BpeScratch scratch;
  std::vector<TokenId> ids;
  model.Encode(word, &scratch, &ids);
  ASSERT_EQ(ids.size(), 1u + 170 * 3 + 1 + 200 * 3);
  EXPECT_EQ(ids[511], 256);
}

}  // namespace
}  // namespace tandem::model::tokenizer_internal
