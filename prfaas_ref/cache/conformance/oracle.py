"""What may and what must be found, from (tenant, tokens) alone. Never asks the manager anything."""

Prefix = tuple[str, tuple[int, ...]]


class Oracle:
    """The prefixes whose KV was declared written, and those whose state was published. Forgets nothing by itself."""

    def __init__(self, block_size: int, has_state: bool) -> None:
        self.block_size = block_size
        self.has_state = has_state
        self.kv: set[Prefix] = set()
        self.state: set[Prefix] = set()

    def committed(self, tenant: str, tokens: list[int], num_tokens: int) -> None:
        for end in range(self.block_size, num_tokens + 1, self.block_size):
            self.kv.add((tenant, tuple(tokens[:end])))

    def snapshot(self, tenant: str, tokens: list[int], num_tokens: int) -> None:
        self.state.add((tenant, tuple(tokens[:num_tokens])))

    def longest_hit(self, tenant: str, tokens: list[int], below_last: bool = True) -> int:
        """The hit of a cache that has lost nothing: the most tokens for which KV is whole and, if need be, state
        exists.
        """
        hit = 0
        for end in range(self.block_size, len(tokens) - below_last + 1, self.block_size):
            prefix = (tenant, tuple(tokens[:end]))
            if prefix not in self.kv:
                break
            if not self.has_state or prefix in self.state:
                hit = end
        return hit

    def forget(self) -> None:
        self.kv.clear()
        self.state.clear()
