// Goal: whatever the merges and however long the word, BpeModel gives what the definition gives:
// join the pair of lowest key, leftmost among equals, until there is none. Random vocabularies over
// few letters make cuts, windows, seams that need mending and seams that never settle.
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

// Letters, then texts made of two earlier ones. The ranks are in no particular order, so that some
// tokens are never reached and some merges come before those that make their parts.
void MakeTexts(Random& random, Vocabulary* vocabulary) {
  const size_t num_letters = 1 + random() % 6;
  for (size_t i = 0; i < num_letters; ++i) vocabulary->texts.push_back(std::string(1, 'a' + i));
  const size_t num_made = 1 + random() % 60;
  std::set<std::string> seen(vocabulary->texts.begin(), vocabulary->texts.end());
  for (size_t i = 0; i < num_made; ++i) {
    const auto pick = [&] { return vocabulary->texts[random() % vocabulary->texts.size()]; };
    std::string text = pick();
    text += pick();
    if (text.size() <= 24 && seen.insert(text).second) vocabulary->texts.push_back(text);
  }
  vocabulary->model.tokens().Reserve(vocabulary->texts.size(), 4096);
  for (size_t id = 0; id < vocabulary->texts.size(); ++id) {
    vocabulary->model.tokens().Add(vocabulary->texts[id], static_cast<TokenId>(id));
  }
  BpeModel::Options options;
  options.byte_level = true;
  options.byte_ids.fill(kNoToken);
  vocabulary->model.SetOptions(options);
}

void UsePairs(Random& random, Vocabulary* vocabulary) {
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
  joins.Enable();
  for (uint32_t rank = 0; rank < found.size(); ++rank) {
    const auto& [pair, made] = found[rank];
    pairs.Set({pair.first, pair.second, rank, made});
    joins.Note(vocabulary->texts[made]);
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
  return {vocabulary.ranks[id] << 8 | (255 - vocabulary.texts[left].size()), id};
}

std::vector<TokenId> EncodeByDefinition(const Vocabulary& vocabulary, const std::string& word) {
  std::vector<TokenId> ids;
  for (const char c : word) ids.push_back(c - 'a');
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
    std::vector<TokenId> ids;
    vocabulary.model.Encode(word, &scratch, &ids);
    ASSERT_EQ(ids, EncodeByDefinition(vocabulary, word)) << word;
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

}  // namespace
}  // namespace tandem::model::tokenizer_internal
