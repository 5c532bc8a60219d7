"""Operations outside the conversation: background tasks and reviews."""
