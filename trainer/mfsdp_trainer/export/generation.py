"""Where an exported model stops to write."""

from transformers import GenerationConfig, PreTrainedTokenizerBase

from mfsdp_trainer.data.chat import ChatTemplate


def stop_after_turns(settings: GenerationConfig, tokenizer: PreTrainedTokenizerBase) -> None:
    """Have generation end where the chat template ends a turn, beside where it ends already.

    A tokenizer's own end token is often another one, and a model that was taught to answer would
    go on to ask as well.
    """
    turn = ChatTemplate(tokenizer).end_of_turn()
    if turn is None:
        return
    known = settings.eos_token_id
    ends = known if isinstance(known, list) else [known] if known is not None else []
    if turn not in ends:
        settings.eos_token_id = [turn, *ends]
