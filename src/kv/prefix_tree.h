// Beginnings of texts whose keys and values are there already: a tree of pages. A node is one page;
// the way from the root to it is the text before it.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "kv/sequence.h"

namespace cutaway::kv {

// Of one pool, whose pages all stand for the same model, cache type and context. Owned by the
// engine's thread; the pool must outlive it.
class PrefixTree {
 public:
  explicit PrefixTree(PagePool& pool) : pool_(&pool) {}
  ~PrefixTree();
  PrefixTree(const PrefixTree&) = delete;
  PrefixTree& operator=(const PrefixTree&) = delete;

  // Lets an empty sequence begin with the longest beginning of `tokens` that is held; returns its
  // length. A page of which only a part is the same counts with that part.
  int64_t begin(std::span<const int32_t> tokens, Sequence& sequence);

  // Holds the pages of `sequence` that stand for its first tokens, these, from now on. Those that
  // are held of the same tokens already stay as they are: their bytes are the same. Precondition:
  // at most as many tokens as the sequence is long.
  void insert(std::span<const int32_t> tokens, const Sequence& sequence);

  // Gives back pages that nobody else uses, those first that were not asked for the longest time,
  // until `n` are given back or no more can be. Returns how many.
  int64_t evict(int64_t n);

  // Pages held; and how many of them evict() could give back.
  int64_t page_count() const { return count_; }
  int64_t evictable() const;

 private:
  struct Node {
    std::vector<int32_t> tokens;  // of this page: kTilePositions, or fewer where no node follows
    Page* page = nullptr;
    Node* parent = nullptr;
    uint64_t last_use = 0;
    std::multimap<int32_t, std::unique_ptr<Node>> children;  // by their first token
  };
  // The child that has the most tokens in common with the text's, and how many.
  static std::pair<Node*, int64_t> best_child(Node& node, std::span<const int32_t> tokens);
  void hold(Node& node, std::span<const int32_t> tokens, Page* page);
  void drop(Node* leaf);

  PagePool* pool_;
  Node root_;
  int64_t count_ = 0;
  uint64_t clock_ = 0;
};

}  // namespace cutaway::kv
